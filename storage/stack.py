"""Opens a stack of samples: a stack store of this package, or any Zarr array.

The stack store, version 1, is a Zarr v3 group::

    out.zarr/
        zarr.json     attributes {"dpca": {"kind": "stack", "version": 1, "fingerprint", "axes", "data_range",
                                           "source": {"kind", "name", "count"}, "color", "ignored"}}
        samples/      (sample, ...), sharded, checksummed, dimension_names
        name/         (sample,) text
        label/        (sample,) where the source has labels
        rejected/     name, reason: what was left out on request, only if anything was
        time/, lat/   coordinates along the axes, where the source has some, see `dpca.storage.coordinates`; arrays call
                      the first axis as the source does then, "time", and the attributes "sample"
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import zarr

from dpca.storage import cf
from dpca.storage.batches import Batches, batches_of
from dpca.storage.choosing import chosen_array, is_in_order
from dpca.storage.coordinates import Coordinates, coordinates_in, dims_of
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.layout import CHANNEL, MAX_CHUNK, SAMPLE, axes_for, named_axes
from dpca.storage.network import use_storage_options
from dpca.storage.numbered import Numbered
from dpca.storage.objects import absolute
from dpca.storage.ranges import checked_range, found_range, type_range
from dpca.storage.reading import array_in, metadata_texts, model_of, open_group, open_node, root_facts
from dpca.storage.replaced import reopening
from dpca.storage.workspace import fingerprint_of

STACK_KIND = "stack"
STACK_VERSION = 1
#: What a stack states to be made from that grew sample by sample, see `dpca.storage.appending`.
APPENDED = "appended samples"

_KINDS = "buif"  # numpy's letters for truth values, integers and floats


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack of samples on disk, opened for reading.

    Attributes
    ----------
    path : str
        As it was given to `open_stack`.
    array_path : str
        Absolute path (or URL) of the samples, for ``dpca.storage.reading.open_array`` inside tasks.
    samples : zarr.Array
        Shape (n_samples, ...), any integer, truth-value or float dtype.
    axes : tuple of str
        Names of the axes, ``"sample"`` first.
    data_range : tuple of float or None
        Lowest and highest value a sample can hold (0 and 255 for 8-bit images); None where nobody stated it.
    source : dict
        What the stack was made from: kind, name, count.
    moved : bool
        Whether the axes are those of the array, which `dpca.storage.ingest` puts in order; only where that was asked.
    """

    path: str
    array_path: str
    samples: zarr.Array[Any]
    axes: tuple[str, ...]
    data_range: tuple[float, float] | None
    source: dict[str, Any]
    moved: bool = False
    _fingerprint: str | None = field(default=None, repr=False)
    _group: zarr.Group | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of all samples together."""
        return self.samples.shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.samples.shape[1:]

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return self.samples.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one value."""
        return np.dtype(self.samples.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples once decoded."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with the content.

        Our stores state it. For a foreign array it is made of its metadata and of one chunk of its first,
        middle and last sample (three chunks are read): enough to tell two arrays apart, not to notice that
        one was edited elsewhere.

        Raises
        ------
        StoreError
            If one of these chunks cannot be read.
        """
        if self._fingerprint is not None:
            return self._fingerprint
        content = [list(named) for named in metadata_texts(self.samples)]
        # the chunk in the middle of a sample: a corner is black in too many stacks
        middles = zip(self.sample_shape, self.samples.chunks[1:], strict=True)
        starts = [(length // 2 // edge * edge, edge) for length, edge in middles]
        tile = tuple(slice(start, start + edge) for start, edge in starts)
        for index in sorted({0, self.n_samples // 2, self.n_samples - 1}):
            values = np.asarray(self.samples[(slice(index, index + 1), *tile)])
            content.append([str(index), blake2b(values.tobytes(), digest_size=16).hexdigest()])
        return fingerprint_of(content)

    @cached_property
    def names(self) -> Numbered | np.ndarray[Any, Any]:
        """Name of every sample, numpy strings of shape (n_samples,); its number where it has no name of its own.

        Of a virtual stack it makes each name when that is asked for.
        """
        if self._group is None:
            return np.arange(self.n_samples).astype(np.dtypes.StringDType())
        if model_of(self.samples) is not None:
            return Numbered(self.n_samples)
        return self._column(self._group, "name")

    @property
    def name_array(self) -> zarr.Array[Any] | None:
        """Names of the samples as they are stored, for those that look for one; None where these are numbers."""
        if self._group is None or model_of(self.samples) is not None:
            return None
        return array_in(self._group, "name")

    def names_at(self, indices: Sequence[int]) -> list[str]:
        """Return the names of some samples; those of the others are not read beyond the chunks that these are in."""
        if self._group is None:
            return [str(index) for index in indices]
        if model_of(self.samples) is not None:
            return Numbered(self.n_samples)[np.asarray(indices)]  # type: ignore[no-any-return]
        stored = array_in(self._group, "name")
        return [str(stored[index]) for index in indices]

    @cached_property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Label of every sample, shape (n_samples,), or None where the source had none."""
        if self._group is None or "label" not in self._group:
            return None
        return self._column(self._group, "label")

    @cached_property
    def rejected(self) -> list[tuple[str, str]]:
        """Name and reason of everything that was left out on request."""
        if self._group is None or "rejected" not in self._group:
            return []
        name, reason = (self._column(self._group, f"rejected/{column}") for column in ("name", "reason"))
        return list(zip(name.tolist(), reason.tolist(), strict=True))

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Names of all axes, and what stands along them in the group of the array; None where they have no names."""
        folder, between, _ = self.array_path.rstrip("/").rpartition("/")
        dims = dims_of(self.samples)
        try:
            group = self._group or (open_group(folder) if dims and between else None)
        except StoreError:
            return None  # the array lies in no group
        if not (group and dims) or self.moved:
            return None
        found = coordinates_in(group, dims, self.shape, self.samples.attrs.asdict())
        return found and found.arranged(range(len(dims)), self.axes[1:])

    def batches(
        self,
        batch_size: int,
        *,
        labels: Any = None,
        shuffle: int | None = None,
        epoch: int = 0,
        part: tuple[int, int] = (0, 1),
        start: int = 0,
        standardize: tuple[Any, Any] | None = None,
    ) -> Batches:
        """Return the samples in batches, for something that trains on them; nothing is read before they are iterated.

        Parameters
        ----------
        batch_size : int
            Samples of a batch; the last one of a part may be shorter.
        labels : array_like (n_samples, ...), optional
            What batches come with, such as ``stack.labels``; ``np.arange(n_samples)`` numbers the samples.
        shuffle : int, optional
            Seed of a random order: whole chunks are drawn, and the samples of 32 MiB of chunks, at least 4 of them, are
            mixed. Default: the order of the store.
        epoch : int
            Another one is another random order.
        part : (int, int)
            Which part of the samples, and of how many: rank and world size. Every sample is in one part, and parts
            differ by at most one sample, so by at most one batch.
        start : int
            Batches to leave out at the beginning, to go on where a run was stopped.
        standardize : (mean, deviation), optional
            Subtract the one and divide by the other, numbers or arrays that broadcast to a sample; what has deviation 0
            is divided by 1. Batches are float32 then, float64 for values of more than 2 bytes that are not float32.

        Returns
        -------
        Batches
            An iterable of arrays (m, *sample_shape) of their own, or of (array, labels).

        Raises
        ------
        DataError
            For arguments that do not fit the samples.
        """
        last = CHANNEL in self.axes[-1:]
        given = {"labels": labels, "shuffle": shuffle, "epoch": epoch, "part": part, "start": start}
        return batches_of(self.samples, batch_size, channels_last=last, standardize=standardize, **given)

    def _column(self, group: zarr.Group, name: str) -> np.ndarray[Any, Any]:
        return np.asarray(array_in(group, name)[...])


@reopening
def open_stack(
    path: str | os.PathLike[str],
    *,
    data_range: tuple[float, float] | None = None,
    axes: Sequence[str] | None = None,
    decoded: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Stack:
    """Open a stack store, or a Zarr array (version 2 or 3) with samples on its first axis.

    Parameters
    ----------
    path : path-like or URL
        A stack store; an array; an image of OME-Zarr, of which the highest resolution is meant; or a group with exactly
        one array of two or more axes, or with one called ``samples``, ``images`` or ``data``. ``path/array`` opens
        another.
    data_range : tuple of float, optional
        Lowest and highest value a sample can hold. By default what a stack store states; for a foreign
        array that of ``bool`` and ``uint8``, and None for other types, whose values jobs look at.
    axes : sequence of str, optional
        Names of the axes of one sample. By default what a stack store states; for a foreign array its
        ``dimension_names`` (or xarray's ``_ARRAY_DIMENSIONS``), else those of `dpca.storage.layout.axes_for`.
    decoded : bool
        Whether the stored values must be the data, samples first; False where the caller decodes them, see
        `dpca.storage.cf`, and moves the axes of OME-Zarr.
    storage_options : mapping, optional
        How `path` is reached where that is an object store, see `dpca.storage.use_storage_options`.

    Returns
    -------
    Stack
        Only metadata has been read.

    Raises
    ------
    DataError
        If there is nothing at `path`, nothing that is a stack, several arrays that could be, or an argument
        does not fit.
    StoreError
        If there is no Zarr store, one that cannot be read, a store of ours of another kind or of a newer
        version.
    """
    use_storage_options(storage_options, path)
    where = os.fspath(path)
    node = open_node(where)
    if isinstance(node, zarr.Group):
        facts = root_facts(node)
        if facts:
            return _open_ours(where, node, facts, data_range, axes)
        samples, array_path, ome = chosen_array(where, node)
    else:
        samples, array_path, ome = node, where, None
    _check_samples(where, samples, decoded)
    moved = ome is not None and axes is None and not is_in_order(ome, samples.shape)
    if moved and decoded:
        raise DataError(
            f"'{where}' has the axes {ome} of lengths {samples.shape}, and samples must come first, channels last: "
            f"make a stack of it with `dpca ingest`"
        )
    source = {"kind": "zarr", "name": os.path.basename(where.rstrip("/")), "count": samples.shape[0]}
    return Stack(
        path=where,
        array_path=absolute(array_path),
        samples=samples,
        axes=_check_axes(axes, samples) if axes is not None else ome or _foreign_axes(samples),
        data_range=checked_range(data_range) if data_range is not None else type_range(np.dtype(samples.dtype)),
        source=source,
        moved=moved,
    )


def _open_ours(
    where: str,
    group: zarr.Group,
    facts: dict[str, Any],
    data_range: tuple[float, float] | None,
    axes: Sequence[str] | None,
) -> Stack:
    kind, version = facts.get("kind"), facts.get("version")
    if kind != STACK_KIND:
        raise StoreError(
            f"'{where}' is a store of kind {kind!r}, not a stack: give a stack, or one array as '{where}/...'"
        )
    if not isinstance(version, int) or version < 1:
        raise StoreError(f"'{where}' states version {version!r}, expected {STACK_VERSION}: ingest the source again")
    if version > STACK_VERSION:
        raise StoreError(
            f"'{where}' is a stack store of version {version} and this program reads up to version "
            f"{STACK_VERSION}: update it (pip install --upgrade dask-dpca) or ingest the source again"
        )
    try:
        samples = array_in(group, "samples")
        stated_axes = tuple(str(axis) for axis in facts["axes"])
        # A store of before stated a constant as [c, c].
        low, high = found_range(*(float(value) for value in facts["data_range"]))
        fingerprint, source = str(facts["fingerprint"]), dict(facts["source"])
        if source.get("kind") == APPENDED:  # whose fingerprint was fixed before its samples were known
            fingerprint = fingerprint_of(fingerprint, str(facts["content"]))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise StoreError(
            f"'{where}' is not a whole stack store ({type(error).__name__}: {one_line(error)}): ingest the source again"
        ) from error
    if not isinstance(samples, zarr.Array) or samples.ndim != len(stated_axes):
        raise StoreError(
            f"'{where}' is not a whole stack store (axes {stated_axes} do not fit its samples): ingest again"
        )
    return Stack(
        path=where,
        array_path=absolute(f"{where.rstrip('/')}/samples"),
        samples=samples,
        axes=_check_axes(axes, samples) if axes is not None else stated_axes,
        data_range=checked_range(data_range) if data_range is not None else (low, high),
        source=source,
        _fingerprint=fingerprint,
        _group=group,
    )


def _check_samples(where: str, samples: zarr.Array[Any], decoded: bool) -> None:
    if samples.ndim < 2:
        raise DataError(
            f"'{where}' has shape {samples.shape}: a stack needs samples on axis 0 and at least one more axis"
        )
    if 0 in samples.shape:
        raise DataError(f"'{where}' has shape {samples.shape}: a stack needs at least one sample and no empty axis")
    if np.dtype(samples.dtype).kind not in _KINDS:
        raise DataError(f"'{where}' holds {samples.dtype}: a stack holds integers, truth values or real floats")
    chunk_bytes = math.prod(samples.chunks) * np.dtype(samples.dtype).itemsize
    if chunk_bytes > MAX_CHUNK:
        raise DataError(
            f"'{where}' has chunks of {chunk_bytes:,} bytes, more than the {MAX_CHUNK:,} read at once: rechunk it"
        )
    if decoded:
        cf.require_plain(where, samples)


def _foreign_axes(samples: zarr.Array[Any]) -> tuple[str, ...]:
    dims = dims_of(samples)
    return (SAMPLE, *((named_axes(dims[1:]) if dims else None) or axes_for(samples.shape[1:])))


def _check_axes(axes: Sequence[str], samples: zarr.Array[Any]) -> tuple[str, ...]:
    named = (SAMPLE, *axes)
    if len(named) != samples.ndim or len(set(named)) != len(named):
        raise DataError(f"axes {tuple(axes)} do not name a sample of shape {samples.shape[1:]}: give one name an axis")
    return named
