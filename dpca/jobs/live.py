"""The model so far of a fit that is running, in a store that other programs read."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from dpca.models.estimator import Estimator
from dpca.models.store import load_any, save_model, stated_by
from dpca.models.watching import Progress
from dpca.storage.disk import there_is
from dpca.storage.errors import StoreError

# Readings of a store that is replaced during each of them; looks for one that is not there, and seconds between two.
_READINGS, _TRIES, _PAUSE = 100, 5, 0.05
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
    >>> from dpca.jobs import read_live
    >>> while not (told := read_live("live.zarr")).finished:
    ...     print(told.n_samples_seen, told.model.explained_variance_ratio_)
    >>> told.model.components_.shape
    (2, 4320)
    """
    for _ in range(_READINGS):
        before = _stated(path)
        try:
            model = load_any(path)
            if _stated(path) == before:
                stated = before[_KEY]
                n, seconds, finished = int(stated["n_samples"]), float(stated["seconds"]), bool(stated["finished"])
                if n < model.n_samples_seen_ or not math.isfinite(seconds):
                    raise ValueError(f"it states {n} samples")
                return Progress.of(model, n, seconds, finished=finished)
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"'{path}' is no model of a running fit ({error}): give what --live names") from error
        except StoreError:
            # Damage, unless it was replaced between two of its files.
            if _stated(path) == before:
                raise
    raise StoreError(f"'{path}' was replaced each time that it was read: look at it again")


def _stated(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what the store states; for a moment, while it is replaced, there is none."""
    for _ in range(_TRIES - 1):
        try:
            return stated_by(path)
        except StoreError:
            time.sleep(_PAUSE)
    return stated_by(path)
