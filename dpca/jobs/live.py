"""The model so far of a fit that is running, in a store that other programs read."""

from __future__ import annotations

import math
import os
import time

from dpca.models.estimator import Estimator
from dpca.models.store import load_stated, save_model, stated_by
from dpca.models.watching import Progress
from dpca.storage.disk import there_is
from dpca.storage.errors import StoreError
from dpca.storage.manifest import METADATA

# Looks for a store that is not there, as in an object store while it is replaced, and seconds between two.
_TRIES, _PAUSE = 4, 0.05
_KEY = "progress"


def write_live(progress: Progress, path: str | os.PathLike[str]) -> None:
    """Keep the model so far in a store, in the place of the one before; it is always whole, see `read_live`.

    Raises
    ------
    StoreError
        If something else is there, or it cannot be written.
    """
    stated = {"n_samples": progress.n_samples, "seconds": progress.seconds, "finished": progress.finished}
    save_model(progress.model, path, overwrite=True, stated={_KEY: stated})


def check_live(path: str | os.PathLike[str], model: Estimator) -> None:
    """Refuse a path at which something else is than the model so far of an earlier fit.

    Raises
    ------
    StoreError
    """
    if there_is(path) and not is_live(path):
        raise StoreError(
            f"'{path}' is a {stated_by(path).get('kind')} store, not the {model.store_kind} of a fit that was running: "
            f"give another path for the model so far"
        )


def is_live(path: str | os.PathLike[str]) -> bool:
    """Return whether the model at a path is that of a fit that was watched, which `read_live` reads."""
    return _KEY in stated_by(path)


def read_live(path: str | os.PathLike[str]) -> Progress:
    """Return the progress of a fit whose model so far is kept in a store, by another program perhaps.

    Parameters
    ----------
    path : path-like or URL
        What ``fit_store(..., live=path)`` or ``dpca fit --live`` keeps.

    Returns
    -------
    Progress
        Its model is whole, however often the store is replaced meanwhile.

    Raises
    ------
    StoreError
        If there is none, or it is damaged. There is none before the first look.

    Examples
    --------
    >>> while not (told := read_live("live.zarr")).finished:  # doctest: +SKIP
    ...     draw(told.model.components_)
    """
    for _ in range(_TRIES):
        if there_is(os.path.join(path, METADATA)):
            break
        time.sleep(_PAUSE)
    model, facts = load_stated(path)
    try:
        stated = facts[_KEY]
        n, seconds, finished = int(stated["n_samples"]), float(stated["seconds"]), bool(stated["finished"])
        if n < model.n_samples_seen_ or not math.isfinite(seconds):
            raise ValueError(f"it states {n} samples")
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"'{path}' is no model of a running fit ({error}): give what --live names") from error
    return Progress.of(model, n, seconds, finished=finished)
