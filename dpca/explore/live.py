"""Models that change while they are looked at: a fit of our own, and a store that another program writes."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any

from dpca.explore.explorer import Explorer
from dpca.explore.words import told
from dpca.storage.claim import read_json
from dpca.storage.manifest import METADATA
from dpca.storage.objects import place_of
from dpca.storage.stack import Stack

# Samples of more values than these are taken in so many at a time: of LSUN's shape, a process holds 1.3 GB and not 1.5.
_LARGE, _FEW = 2**16, 128


class LiveFit:
    """Fits components to a stack, in random order, for as long as somebody may want to see them.

    Parameters
    ----------
    explorer : Explorer
        Shows each model.
    stack : Stack
    n_components : int
    """

    def __init__(self, explorer: Explorer, stack: Stack, n_components: int) -> None:
        self._explorer, self._stack, self._k, self._over = explorer, stack, n_components, threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-fit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._explorer.fitting, self._explorer.stop_fit = True, self._over.set
        self._explorer.progress = "reading the first samples"
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """End, after what is in progress, for which this waits so long."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def wait(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        explorer = self._explorer
        try:
            for words, model in self._models():
                explorer.use(model)
                explorer.progress = words
                if self._over.is_set():
                    break
        except Exception as error:  # nobody else would hear of it
            explorer.news = told(error)
        explorer.fitting = False

    def _models(self) -> Any:
        from dpca.models.streaming_pca import StreamingPCA

        d = math.prod(self._stack.sample_shape)
        most = max(1, min(self._k, self._stack.n_samples - 1, d))
        model = StreamingPCA(most, shuffle=True, random_state=0, batch_size=_FEW if d > _LARGE else None)
        for progress in model.iter_fit(self._stack):
            yield progress_words(progress), progress.model


class Watched:
    """A store of a model, which is looked at again when another program has written it.

    Parameters
    ----------
    path : str
    reload : callable
        Brings the model that stands there.
    explorer : Explorer
    """

    def __init__(self, path: str, reload: Callable[[], None], explorer: Explorer) -> None:
        self._path, self._reload, self._explorer = path, reload, explorer
        self._known = self._state()

    def look(self) -> None:
        """Bring the model if it is another one by now; say so where there is none any more."""
        state = self._state()
        if state is None:
            self._explorer.news = (
                f"there is no model at '{self._path}' at the moment: what is shown is the one that was read last"
            )
        elif state != self._known or self._explorer.news:
            try:
                self._reload()
            except Exception as error:  # it may be replaced right now, by whatever
                self._explorer.news = told(error)
            else:
                self._known, self._explorer.news = state, ""

    def _state(self) -> Any:
        facts = read_json(place_of(os.path.join(self._path, METADATA)))
        return None if facts is None else facts.get("attributes")


def progress_words(progress: Any) -> str:
    """Say how far a fit is, and what its components are known to capture."""
    seen = f"{progress.n_samples_seen:,} of {progress.n_samples:,} samples in {progress.seconds:.0f} s"
    captured = f"the components explain {progress.captured_variance:.1%} of the variance"
    known = (
        ""
        if math.isnan(progress.captured_bound)
        else f", at least {math.floor(progress.captured_bound * 1000) / 1000:.1%} of what the best would of these"
    )
    return f"{seen}: {captured}{known}"
