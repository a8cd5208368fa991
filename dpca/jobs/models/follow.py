"""Fit a model to a stack that is still being written: the model is updated as samples arrive."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Any

from dpca.models.base.estimator import Estimator
from dpca.models.base.store import load_any
from dpca.storage.disk import exists
from dpca.storage.errors import DataError
from dpca.storage.growth.arrivals import arrivals
from dpca.storage.transaction.outputs import check_output

# Parameters that a stored model does not state. They do not change the result.
_NOT_KEPT = ("random_state", "memory_budget")


def follow(
    path: str | os.PathLike[str],
    model: Any,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    save_every: float = 60.0,
    poll: float = 1.0,
    patience: float = math.inf,
) -> Iterator[Any]:
    """Fit a model to a stack while a `dpca.storage.Appender` writes it.

    Parameters
    ----------
    path : path-like or URL
        Target of the writer. It need not exist yet.
    model : estimator with ``partial_fit``
        Not fitted, or fitted to the first samples of this stack.
    checkpoint : path-like or URL, optional
        Store of the model, written every ``save_every`` seconds and at the end. If it exists, the fit resumes from it.
        Requires ``keep_state=True``.
    save_every : float
        Seconds between two checkpoints.
    poll, patience : float
        As for `dpca.storage.arrivals`.

    Yields
    ------
    estimator
        The model after each arrival of samples. Its components are computed when they are accessed, which takes longer
        than an update with a few samples.

    Raises
    ------
    DataError
        If the model has no ``partial_fit``, lacks ``keep_state``, has other parameters than the checkpoint, or rejects
        the samples.
    StoreError
        If the stack cannot be read or the checkpoint cannot be written.

    Notes
    -----
    When the writer has closed the stack, the model depends only on the samples. It does not depend on the times of
    arrival, nor on interruptions of the writer or of this function. ``angle_moved_`` and ``variance_moved_`` are
    exceptions: they compare with the components at the last access, and each checkpoint counts as one.

    Examples
    --------
    >>> import dpca
    >>> for model in dpca.follow("run.zarr", dpca.StreamingPCA(5, keep_state=True), checkpoint="m.zarr"):
    ...     seen, shares = model.n_samples_seen_, model.explained_variance_ratio_
    >>> seen
    30
    """
    if not (isinstance(model, Estimator) and hasattr(model, "partial_fit")):
        raise DataError(f"{type(model).__name__} has no partial_fit: give StreamingPCA, CellPCA or BandPCA, not fitted")
    if checkpoint is not None:
        model = _resumed(model, checkpoint, path)
    saved = time.monotonic()
    seen = int(getattr(model, "n_samples_seen_", 0))
    for samples in arrivals(path, seen, poll=poll, patience=patience):
        model.partial_fit(samples)
        seen += len(samples)
        if checkpoint is not None and time.monotonic() - saved >= save_every:
            model.save(checkpoint, overwrite=True)
            saved = time.monotonic()
        yield model
    if checkpoint is not None and seen:
        model.save(checkpoint, overwrite=True)


def _resumed(model: Any, checkpoint: str | os.PathLike[str], path: str | os.PathLike[str]) -> Any:
    """Return the model of the checkpoint if there is one, or the given model."""
    if not model.keep_state:
        raise DataError(f"a checkpoint requires the model state: give {type(model).__name__}(..., keep_state=True)")
    check_output(checkpoint, path)
    if not exists(checkpoint):
        return model
    kept = load_any(checkpoint, type(model))
    own, asked = kept.get_params(), model.get_params()
    # A store can state a parameter in another form, such as (8, 8) for cells of length 8.
    alike = {name for name in asked if name not in _NOT_KEPT and type(own[name]) is type(asked[name])}
    other = next((name for name in sorted(alike) if own[name] != asked[name]), None)
    if other is not None:
        raise DataError(
            f"the checkpoint '{checkpoint}' has {other}={own[other]!r} but the model has {asked[other]!r}: "
            f"give the same parameters or another checkpoint"
        )
    return kept
