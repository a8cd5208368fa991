"""A stack that grows while others read it: a simulation appends its steps, and followers read the committed samples.

::

    run.zarr.partial/                            see `dpca.storage.transaction.workspace`
        done-<hash>/<hash>.json                  {"record": {"n_samples": 512, "low": ..., "high": ...}}
        store-<hash>/samples/c/0/..., c/1/...    complete chunks of samples
    run.zarr/                                    an ordinary stack store, once the writer has closed it

The writer writes a chunk first and the number of samples afterwards. A reader that stays below this number never reads
a missing or torn chunk, which Zarr would decode as zeros. A writer that was killed resumes after the last committed
chunk. Its store is bit-identical to that of an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import ArrayLike, DTypeLike

from dpca.storage.arrays.arrays import create_array, create_root, growing_store, write_shard, write_strings
from dpca.storage.arrays.layout import Layout, axes_for, choose_layout, stack_axes
from dpca.storage.disk import writing_errors
from dpca.storage.errors import DataError, StoreError
from dpca.storage.given_numbers import require_one_array, whole_number
from dpca.storage.integrity.checksums import stored_checksums
from dpca.storage.integrity.manifest import digest_of
from dpca.storage.ranges import checked_range, found_range, type_range
from dpca.storage.stack import APPENDED, STACK_KIND, STACK_VERSION, open_stack
from dpca.storage.transaction.outputs import check_output
from dpca.storage.transaction.workspace import Workspace, fingerprint_of

#: The name of the array that grows. The record of the unit of work with this name holds the number of samples.
UNIT = "samples"
# The final length is unknown, so the layout is that of a long stack. Chunks are small, since each is committed alone.
_LONG, _CHUNK_BYTES = 1 << 20, 4 << 20


class Appender:
    """Writes a stack store sample by sample; the number of samples need not be known in advance.

    Parameters
    ----------
    target : path-like or URL
        Where the store appears when it is closed. Until then it grows in ``<target>.partial``, where
        `dpca.storage.arrivals` and `dpca.follow` read it.
    sample_shape : sequence of int
        Shape of one sample.
    dtype : dtype
        Any integer, boolean or float type.
    axes : sequence of str, optional
        Names of the axes of one sample, or of all axes, such as "tzyx": the stack then keeps the name of the first. The
        default is `dpca.storage.arrays.layout.axes_for`.
    data_range : tuple of float, optional
        Lowest and highest possible value of a sample. The default is the range of the type for ``bool`` and ``uint8``,
        and the lowest and highest value found for other types.
    chunk_samples : int, optional
        Samples that are committed at once. The default is the number of samples in about 4 MB.
    parameters : mapping, optional
        JSON-able parameters that determine the samples, such as those of a simulation. A run with other parameters does
        not resume this store. The finished store records them.
    overwrite : bool
        Whether to replace another Zarr store, or an unfinished one with other settings. A finished store with the same
        settings is kept, and ``n_samples`` is its length.

    Attributes
    ----------
    n_samples : int
        Samples so far. After an interrupted run, the number of samples that it committed: a simulation resumes there.
    n_committed : int
        Samples that a follower can read.

    Raises
    ------
    DataError
        If an argument is invalid.
    StoreError
        If the target is not such a store, or another run writes it. Any call raises it if the target cannot be written.

    Notes
    -----
    Memory: the samples of one chunk. The call of `append` that fills a chunk writes it and flushes the disk. Samples in
    an incomplete chunk are lost if the process is killed.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca.storage import Appender
    >>> with Appender("waves.zarr", (64, 64), "f4") as steps:
    ...     for t in range(steps.n_samples, 100):
    ...         steps.append(np.sin(np.linspace(t, t + 9, 64 * 64, dtype="f4")).reshape(64, 64))
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        sample_shape: Sequence[int],
        dtype: DTypeLike,
        *,
        axes: Sequence[str] | None = None,
        data_range: tuple[float, float] | None = None,
        chunk_samples: int | None = None,
        parameters: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self._target, self.sample_shape, self.dtype = target, tuple(map(int, sample_shape)), np.dtype(dtype)
        if self.dtype.kind not in "buif" or min(self.sample_shape, default=0) < 1:
            raise DataError(
                f"sample shape {self.sample_shape} and dtype {self.dtype} cannot be stored: give lengths of at least 1 "
                f"and an integer, boolean or float type"
            )
        if chunk_samples is not None:
            chunk_samples = whole_number(chunk_samples, "chunk_samples", 1)
        self._axes = stack_axes(axes_for(self.sample_shape) if axes is None else axes, self.sample_shape)
        first = axes[:1] if axes is not None and len(axes) > len(self.sample_shape) else self._axes[:1]
        self._dims = (*map(str, first), *self._axes[1:])
        self._range = type_range(self.dtype) if data_range is None else checked_range(data_range)
        # The samples are in the memory of this process, so that they are written whole.
        found = choose_layout((_LONG, *self.sample_shape), self.dtype.itemsize, self._axes, part_bytes=None)
        size = math.prod(self.sample_shape) * self.dtype.itemsize
        rows = min(found.chunks[0], max(1, _CHUNK_BYTES // size)) if chunk_samples is None else chunk_samples
        self._layout = Layout((rows, *found.chunks[1:]), (rows, *found.shards[1:]))
        self._waiting = np.empty((rows, *self.sample_shape), self.dtype.newbyteorder("="))
        self._n_waiting = 0
        self._settings = {"chunk_samples": rows, "parameters": dict(parameters or {})}
        try:
            settings = [APPENDED, self.sample_shape, self.dtype.str, self._dims, self._range, self._settings]
            fingerprint = fingerprint_of(STACK_KIND, STACK_VERSION, settings)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"parameters cannot be stored as JSON ({error}): give finite numbers, text and lists"
            ) from error
        check_output(target)
        self._work = Workspace(
            target,
            kind=STACK_KIND,
            fingerprint=fingerprint,
            overwrite=overwrite,
        )
        self._work.__enter__()
        try:
            self._open = self._work.state != "complete"
            self._low, self._high = math.inf, -math.inf
            self.n_committed = 0 if self._open else open_stack(target).n_samples
            if self._work.state == "resumed" and self._work.is_done(UNIT):
                record = self._work.record(UNIT)
                self.n_committed, self._low, self._high = record["n_samples"], record["low"], record["high"]
            if self._open:
                self._group = zarr.open_group(growing_store(os.fspath(self._work.store)), mode="a", zarr_format=3)
        except BaseException as error:
            self._leave(error)
            raise

    @property
    def n_samples(self) -> int:
        """Samples so far, including those in an incomplete chunk."""
        return self.n_committed + self._n_waiting

    def append(self, samples: ArrayLike) -> None:
        """Append one sample of ``sample_shape``, or several along a first axis.

        Raises
        ------
        DataError
            If the samples have another shape or type, or a value that is not finite. No sample is added in this case.
        StoreError
            If the store is closed.
        """
        require_one_array(samples, "samples")
        values = np.asarray(samples)
        if values.shape == self.sample_shape:
            values = values[None]
        if values.shape[1:] != self.sample_shape or values.ndim != 1 + len(self.sample_shape):
            raise DataError(
                f"samples have the shape {values.shape}, but the store has {self.sample_shape}: give this shape, or "
                f"several samples along a first axis"
            )
        if values.dtype.newbyteorder("=") != self._waiting.dtype:
            raise DataError(f"samples have the dtype {values.dtype}, but the store has {self.dtype}: convert them")
        bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if bad.any():
            first = self.n_samples + int(bad.argmax())
            raise DataError(f"sample {first:,} of '{self._target}' has a value that is not finite: leave it out")
        if len(values) and not self._open:
            raise StoreError(
                f"'{self._target}' is closed, with {self.n_samples:,} samples: give another target, or remove it"
            )
        while len(values):
            room = len(self._waiting) - self._n_waiting
            part, values = values[:room], values[room:]
            self._waiting[self._n_waiting : self._n_waiting + len(part)] = part
            self._n_waiting += len(part)
            if self._n_waiting == len(self._waiting):
                self._commit()

    def close(self) -> None:
        """Write the remaining samples and move the store to its name. Closing again has no effect.

        Raises
        ------
        DataError
            If no sample was appended.
        """
        if not self._open:
            return
        if not self.n_samples:
            raise DataError(f"no sample was appended to '{self._target}': append at least one before close()")
        with writing_errors(self._target):
            self._write()
            low, high = self._range or found_range(self._low, self._high)
            n = self.n_samples
            checksums = json.dumps(stored_checksums(self._work.store / UNIT), sort_keys=True)
            create_root(
                self._work.store,
                kind=STACK_KIND,
                fingerprint=self._work.fingerprint,
                version=STACK_VERSION,
                axes=list(self._axes),
                data_range=[low, high],
                source={"kind": APPENDED, "name": self._work.target.name, "count": n},
                settings=self._settings,
                color=None,
                ignored=0,
                content=digest_of(checksums.encode()),
            )
            write_strings(self._group, "name", [str(i) for i in range(n)])
            self._work.publish()
        self.n_committed, self._n_waiting = n, 0
        self._leave(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store. After an error, leave it unfinished; a later run resumes after its last chunk."""
        try:
            if error is None:
                self.close()
        except BaseException as failed:
            self._leave(failed)
            raise
        self._leave(error)

    def _commit(self) -> None:
        with writing_errors(self._target):
            self._write()
            n = self.n_committed + self._n_waiting
            self._work.mark_done(UNIT, record={"n_samples": n, "low": self._low, "high": self._high})
        self.n_committed, self._n_waiting = n, 0

    def _write(self) -> None:
        """Write the buffered samples as one shard, which is not committed yet."""
        shape = (self.n_committed + self._n_waiting, *self.sample_shape)
        array = create_array(self._group, UNIT, shape, self.dtype, self._layout, self._dims)
        if self._n_waiting:
            values = self._waiting[: self._n_waiting]
            write_shard(array, self.n_committed, values)
            self._low, self._high = min(self._low, float(values.min())), max(self._high, float(values.max()))

    def _leave(self, error: BaseException | None) -> None:
        self._open = False
        self._work.__exit__(None if error is None else type(error), error, None)
