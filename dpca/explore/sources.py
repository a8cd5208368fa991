"""Samples of photographs, archives and arrays that were not ingested, read on demand."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence

import numpy as np

from dpca.explore.originals import Originals, SampleNames
from dpca.kernels.algebra.types import Array, Region
from dpca.storage.disk import require_free_space
from dpca.storage.errors import DataError, one_line
from dpca.storage.images import decode
from dpca.storage.numbered import Numbered
from dpca.storage.readers import Reader
from dpca.storage.readers.base import Block
from dpca.storage.survey import SampleForm, payload_or_refusal

# Bytes of samples of an array that are read together.
_BLOCK_BYTES = 2**22


class ReaderOriginals(Originals):
    """The samples of a reader. A source that is read from its beginning only is unpacked into a temporary file.

    Parameters
    ----------
    reader : Reader
    form : SampleForm
        See `dpca.storage.survey.survey`.
    """

    def __init__(self, reader: Reader, form: SampleForm) -> None:
        self.reader, self._form = reader, form
        size = int(np.prod(form.sample_shape)) * form.dtype.itemsize
        rows = 1 if reader.encoded else max(1, _BLOCK_BYTES // size)
        boxes = reader.reads_boxes and reader.random_access
        super().__init__(reader.name, len(reader), form.sample_shape, form.dtype, rows=rows, in_boxes=boxes)
        self._unpacked = None if reader.random_access else _Unpacked(self)

    def box(self, index: int, region: Region) -> Array:
        """Return a box of a sample. NaN replaces missing values."""
        return self.values([index], region)[0]

    def values(self, indices: Sequence[int], region: Region | None = None) -> Array:
        """Read increasing samples, or a box of them. NaN replaces missing values.

        Raises
        ------
        DataError
            If the source or a sample cannot be read.
        """
        if self._unpacked is not None:
            found = self._unpacked.read(indices)
            return found if region is None else found[(slice(None), *(slice(a, b) for a, b in region))]
        try:
            block = self.reader.fetch(indices) if region is None else self.reader.box(indices, region)()
        except OSError as error:
            raise DataError(
                f"'{self.reader.name}' cannot be read any more ({one_line(error)}): restore it, or start this program "
                f"again"
            ) from error
        return self.decoded(block, indices)

    def decoded(self, block: Block, indices: Sequence[int]) -> Array:
        """Return the samples of a block of the reader."""
        if isinstance(block, np.ndarray):
            if not np.ma.is_masked(block):
                return np.ma.getdata(block)
            return np.ma.filled(block.astype(np.result_type(block.dtype, np.float32)), np.nan)
        values = np.empty((len(block), *self.sample_shape), self.dtype)
        for place, (index, payload) in enumerate(zip(indices, block, strict=True)):
            try:
                values[place] = decode(payload_or_refusal(payload), self._form.rules)
            except DataError as error:
                raise DataError(f"{self.reader.called(index)} {error}") from None
        return values

    def _samples(self, start: int, stop: int) -> Array:
        return self.values(range(start, stop))


class _Unpacked:
    """The samples of a sequential source in a temporary file without a name, which a thread writes."""

    def __init__(self, originals: ReaderOriginals) -> None:
        self._originals, self._done = originals, 0
        self._error: Exception | None = None
        self._changed = threading.Condition()
        shape = (originals.n_samples, *originals.sample_shape)
        size = int(np.prod(shape)) * originals.dtype.itemsize
        require_free_space(tempfile.gettempdir(), size, f"the samples of '{originals.reader.name}'")
        with tempfile.TemporaryFile() as file:  # the array keeps it
            self._values: Array = np.memmap(file, originals.dtype, "w+", shape=shape)
        threading.Thread(target=self._run, name="unpack", daemon=True).start()

    def read(self, indices: Sequence[int]) -> Array:
        """Return samples, and wait until they are unpacked."""
        with self._changed:
            self._changed.wait_for(lambda: self._done > max(indices) or self._error is not None)
            if self._done <= max(indices):
                assert self._error is not None
                raise self._error
        return self._values[np.asarray(indices)]

    def _run(self) -> None:
        originals, n = self._originals, self._originals.n_samples
        try:
            for index, block in enumerate(originals.reader.stream([i] for i in range(n))):
                self._values[index] = originals.decoded(block, [index])[0]
                with self._changed:
                    self._done = index + 1
                    self._changed.notify_all()
        except Exception as error:  # reported by the next read
            with self._changed:
                self._error = error
                self._changed.notify_all()


def names_of(reader: Reader) -> SampleNames:
    """Return the names of the samples of a reader."""
    names = reader.names
    return SampleNames(None if isinstance(names, Numbered) else names, len(reader))
