"""Models that change while the page is open: a fit of this program, and a store that another program writes."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dpca.engine.sources.source import BatchReader, Source
from dpca.explore.explorer import Explorer
from dpca.explore.originals import Originals, StackOriginals
from dpca.explore.sources import ReaderOriginals
from dpca.explore.words import error_text
from dpca.kernels.algebra.types import Array, Region
from dpca.plots.numbers import rounded_down
from dpca.storage import cf
from dpca.storage.errors import DataError
from dpca.storage.integrity.manifest import METADATA
from dpca.storage.remote.objects import place_of
from dpca.storage.stack import Stack
from dpca.storage.transaction.claim import read_json

# Samples with more values than this are folded in batches of this size: a fit to LSUN then takes 1.3 GB, not 1.5 GB.
_LARGE, _FEW = 2**16, 128


class LiveFit:
    """Fits components to a stack in random order, until it ends or is stopped.

    Parameters
    ----------
    explorer : Explorer
        Has the stack, and shows each model.
    n_components : int
    """

    def __init__(self, explorer: Explorer, n_components: int) -> None:
        assert explorer.originals is not None
        self._originals = explorer.originals
        self._explorer, self._k, self._stopped = explorer, n_components, threading.Event()
        self._thread = threading.Thread(target=self._run, name="live-fit", daemon=True)

    def start(self) -> None:
        """Start the fit in a thread."""
        self._explorer.fitting, self._explorer.stop_fit = True, self._stopped.set
        self._explorer.progress = "reading the first samples"
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Stop the fit after the current step, and wait for that at most ``seconds``."""
        self._stopped.set()
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
                if self._stopped.is_set():
                    break
        except Exception as error:  # a thread's errors are reported on the page
            explorer.news = error_text(error)
        explorer.fitting = False

    def _models(self) -> Any:
        from dpca.models.streaming.streaming_pca import StreamingPCA

        originals = self._originals
        d = math.prod(originals.sample_shape)
        most = max(1, min(self._k, originals.n_samples - 1, d))
        model = StreamingPCA(most, shuffle=True, random_state=0, batch_size=_FEW if d > _LARGE else None)
        for progress in model.iter_fit(_source_of(originals)):
            yield describe_progress(progress), progress.model


class LiveModelStore:
    """A model store that is reloaded after another program has written it.

    Parameters
    ----------
    path : str
    reload : callable
        Loads the current model.
    explorer : Explorer
    """

    def __init__(self, path: str, reload: Callable[[], None], explorer: Explorer) -> None:
        self._path, self._reload, self._explorer = path, reload, explorer
        self._known = self._state()

    def check(self) -> None:
        """Reload the model if it has changed; report a missing one."""
        state = self._state()
        if state is None:
            self._explorer.news = f"there is no model at '{self._path}' at the moment: the page shows the last one"
        elif state != self._known or self._explorer.news:
            try:
                self._reload()
            except Exception as error:  # another program may be writing anything there right now
                self._explorer.news = error_text(error)
            else:
                self._known, self._explorer.news = state, ""

    def _state(self) -> Any:
        facts = read_json(place_of(os.path.join(self._path, METADATA)))
        return None if facts is None else facts.get("attributes")


def describe_progress(progress: Any) -> str:
    """Describe the progress of a fit: samples, time, and the variance that its components capture."""
    seen = f"{progress.n_samples_seen:,} of {progress.n_samples:,} samples in {progress.seconds:.0f} s"
    captured = f"the components explain {progress.captured_variance:.1%} of the variance"
    known = (
        ""
        if math.isnan(progress.captured_bound)
        else f", at least {rounded_down(progress.captured_bound)} of the optimum on the samples seen"
    )
    return f"{seen}: {captured}{known}"


def _source_of(originals: Originals) -> Stack | Source:
    """Return the samples as an argument of a fit."""
    if isinstance(originals, StackOriginals):
        return originals.stack
    assert isinstance(originals, ReaderOriginals)
    return ReaderSource(originals)


class ReaderSource(Source):
    """The samples of a reader, decoded by the threads of this process.

    Parameters
    ----------
    originals : ReaderOriginals
    """

    in_process = True

    def __init__(self, originals: ReaderOriginals) -> None:
        shape = (originals.n_samples, *originals.sample_shape)
        super().__init__(originals.reader.name, shape, originals.dtype, (1, *originals.sample_shape))
        self._originals = originals

    def reader(self) -> BatchReader:
        """Return a function that reads boxes."""
        in_boxes = self._originals.reader.reads_boxes

        def read(samples: tuple[int, int], region: Region, out: Array) -> None:
            for start, stop in self.reads(samples, region):
                values = self._originals.values(range(start, stop), region if in_boxes else None)
                if values.dtype != self.dtype:  # NaN in a copy of integers
                    raise DataError(f"'{self.name}' has missing values: {cf.REMEDY}")
                box = () if in_boxes else tuple(slice(a, b) for a, b in region)
                np.copyto(out[start - samples[0] : stop - samples[0]], values[(slice(None), *box)])

        return read
