"""The model so far of a running fit, in a store that other programs can read."""

from __future__ import annotations

import math
import os
import time

from dpca.models.base.callbacks import Progress
from dpca.models.base.estimator import Estimator
from dpca.models.base.store import load_stated, save_model, stated_by
from dpca.storage.disk import exists
from dpca.storage.errors import StoreError
from dpca.storage.integrity.manifest import METADATA

# In an object store, a store can be missing while it is replaced: number of tries, and seconds between them.
_TRIES, _PAUSE = 4, 0.05
_KEY = "progress"


def write_live(progress: Progress, path: str | os.PathLike[str]) -> None:
    """Write the model so far to a store. It replaces the earlier one atomically, see `read_live`.

    Raises
    ------
    StoreError
        If something else is there, or it cannot be written.
    """
    stated = {"n_samples": progress.n_samples, "seconds": progress.seconds, "finished": progress.finished}
    save_model(progress.model, path, overwrite=True, stated={_KEY: stated})


def check_live(path: str | os.PathLike[str], model: Estimator) -> None:
    """Reject a path that holds something other than the model so far of an earlier fit.

    Raises
    ------
    StoreError
    """
    if exists(path) and not is_live(path):
        raise StoreError(
            f"'{path}' is a {stated_by(path).get('kind')} store, not the {model.store_kind} of a running fit: "
            f"give another path for the model so far"
        )


def is_live(path: str | os.PathLike[str]) -> bool:
    """Return whether the model at a path was written during a fit, for `read_live`."""
    return _KEY in stated_by(path)


def read_live(path: str | os.PathLike[str]) -> Progress:
    """Read the progress of a fit from the store of its model so far. The fit can run in another program.

    Parameters
    ----------
    path : path-like or URL
        The path given to ``fit_store(..., live=path)`` or ``dpca fit --live``.

    Returns
    -------
    Progress
        Its model is complete, even if the store is replaced in the meantime.

    Raises
    ------
    StoreError
        If there is no such store, or it is damaged. The first callback of the fit creates it.

    Examples
    --------
    >>> from dpca.jobs import read_live
    >>> while not (progress := read_live("live.zarr")).finished:
    ...     print(progress.n_samples_seen, progress.model.explained_variance_ratio_)
    >>> progress.model.components_.shape
    (2, 4320)
    """
    for _ in range(_TRIES):
        if exists(os.path.join(path, METADATA)):
            break
        time.sleep(_PAUSE)
    model, facts = load_stated(path)
    try:
        stated = facts[_KEY]
        n, seconds, finished = int(stated["n_samples"]), float(stated["seconds"]), bool(stated["finished"])
        if n < model.n_samples_seen_ or not math.isfinite(seconds):
            raise ValueError(f"it states {n} samples")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"'{path}' is not a model of a running fit ({error}): give the path of --live") from error
    return Progress.of(model, n, seconds, finished=finished)
