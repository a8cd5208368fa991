"""Decodes and writes one shard of a stack, or writes kept files: the task of an ingest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpca.storage import cf
from dpca.storage.arrays.arrays import write_shard
from dpca.storage.arrays.kept_jpegs import kept_sample
from dpca.storage.arrays.reading import open_array
from dpca.storage.arrays.shards import ShardRows
from dpca.storage.errors import DataError, one_line
from dpca.storage.images import DecodeOptions, decode
from dpca.storage.readers import Block, Payload
from dpca.storage.survey import SampleForm, payload_or_refusal

# Pixels that are decoded at once. The kernel clears the memory of a new buffer of a whole shard, but malloc keeps
# buffers of this size. With fewer pixels, small parts of chunks would be written.
_DECODED_BYTES = 16 << 20

T = TypeVar("T")


@dataclass(frozen=True)
class ShardResult:
    """The result of a task: rejected samples (index in the shard, reason), or else the range of its values."""

    rejected: tuple[tuple[int, str], ...] = ()
    low: float | None = None
    high: float | None = None


def write_decoded(
    array_path: str,
    start: Sequence[int],
    source: Callable[[], Block] | Block,
    form: SampleForm,
    stop: bool,
) -> ShardResult:
    """Read, decode and write one shard; a task of `dpca.storage.ingest.ingest`.

    Parameters
    ----------
    array_path : str
        Path of the samples of the stack.
    start : sequence of int
        Index of the first value of the shard along each axis.
    source : callable or block
        Return value of `Reader.part` or `Reader.box`, or a block from `Reader.stream`.
    form : SampleForm
        Form of the samples. If it has no data range, the range of the values is computed.
    stop : bool
        Whether to stop at the first rejected sample.

    Returns
    -------
    ShardResult
        If a sample is rejected, nothing is written.

    Raises
    ------
    DataError
        If the source as a whole cannot be read.
    """
    try:
        block = source() if callable(source) else source
    except OSError as error:
        raise DataError(
            f"the source cannot be read ({one_line(error)}): keep it at its path, readable for every worker"
        ) from error
    array = open_array(array_path, "r+")
    if not isinstance(block, np.ndarray):
        images = DecodedImages(block, form, stop)
        try:
            write_shard(array, start, images)
        except _Rejection:
            return ShardResult(tuple(images.rejected))
        return ShardResult((), images.low, images.high)
    block = np.ma.filled(block.astype(form.dtype, copy=False), np.nan) if form.gaps else block
    values = np.ma.getdata(block)
    if rejected := tuple(_no_data(block, start[1:], form)):
        return ShardResult(rejected)
    write_shard(array, start, values)
    if form.data_range is not None:
        return ShardResult()
    if form.gaps:
        values = values[np.isfinite(values)]
        return ShardResult((), float(values.min(initial=np.inf)), float(values.max(initial=-np.inf)))
    return ShardResult((), float(values.min()), float(values.max()))


class _Rejection(Exception):
    """An image is rejected, so that no shard is written."""


class DecodedImages(ShardRows):
    """The pixels of encoded images, which are decoded while they are written, or their files.

    Attributes
    ----------
    rejected : list of (int, str)
        Indices of images that are not samples of the stack, with the reasons.
    low, high : float or None
        Range of the values, if the form has no data range.
    """

    def __init__(self, payloads: Sequence[Payload], form: SampleForm, stop: bool) -> None:
        self.shape, self.dtype = (len(payloads), *form.sample_shape), form.dtype
        self.step = min(len(payloads), max(1, _DECODED_BYTES // (prod(form.sample_shape) * form.dtype.itemsize)))
        self.rejected: list[tuple[int, str]] = []
        self.low: float | None = None
        self.high: float | None = None
        self.encoded_bytes = sum(len(payload) for payload in payloads if isinstance(payload, bytes))
        self._payloads, self._form, self._stop = payloads, form, stop
        self._keep = partial(kept_sample, rules=form.rules or DecodeOptions())
        self._pixels = np.empty((self.step, *form.sample_shape), form.dtype)

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Decode some images; after the first rejection, find all others."""
        pixels = self._pixels[: stop - first]
        for i in range(first, stop):
            self._convert(i, partial(decode, rules=self._form.rules, out=pixels[i - first]))
        if self._form.data_range is None:
            low, high = float(pixels.min()), float(pixels.max())
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)
        return pixels

    def encoded(self, row: int) -> bytes:
        """Return the file of an image, or its pixels if it is not kept; after the first rejection, find all others."""
        return self._convert(row, self._keep)

    def _convert(self, i: int, convert: Callable[[bytes], T]) -> T:
        try:
            return convert(payload_or_refusal(self._payloads[i]))
        except DataError as error:
            self.rejected.append((i, str(error)))
        for other in range(i + 1, 0 if self._stop else len(self._payloads)):
            try:
                convert(payload_or_refusal(self._payloads[other]))
            except DataError as error:
                self.rejected.append((other, str(error)))
        raise _Rejection


def _no_data(block: NDArray[Any], corner: Sequence[int], form: SampleForm) -> Iterator[tuple[int, str]]:
    """Yield the index of each sample with a value that is missing (masked) or not finite, and the reason.

    ``corner`` is the place of the block in a sample. The form says whether NaN and infinities are allowed.
    """
    values = np.ma.getdata(block)
    masked = np.ma.is_masked(block)
    if values.dtype.kind != "f" and not masked:
        return
    absent = np.ma.getmaskarray(block) if masked else np.zeros((), bool)
    bad = absent
    if values.dtype.kind == "f":
        bad = ~np.isfinite(values)
        for allowed, of_kind in ((form.gaps, np.isnan), (form.infinite, np.isinf)):
            bad = bad & ~of_kind(values) if allowed else bad
    if masked:
        bad = bad | absent
    for i in np.flatnonzero(bad.reshape(len(values), -1).any(axis=1)):
        inside = tuple(int(j) for j in np.argwhere(bad[i])[0])
        where = tuple(c + j for c, j in zip(corner, inside, strict=True))
        if masked and absent[i][inside]:
            yield int(i), f"has a missing value at {where}: {cf.REMEDY}"
        else:
            remedy = cf.INFINITE_REMEDY if form.gaps else cf.REMEDY
            yield int(i), f"has the value {values[i][inside]} at {where}: {remedy}"
