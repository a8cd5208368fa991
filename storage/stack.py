"""Opens a stack of samples: a stack store of dpca, or any Zarr array.

The stack store, version 1, is a Zarr v3 group::

    out.zarr/
        zarr.json     attributes {"dpca": {"kind": "stack", "version": 1, "fingerprint", "axes", "data_range",
                                           "source": {"kind", "name", "count"}, "color", "ignored"}}
        samples/      (sample, ...), sharded, with checksums and dimension_names
        name/         (sample,) text
        label/        (sample,) if the source has labels
        rejected/     name, reason: rejected samples, if there are any
        time/, lat/   coordinates along the axes, if the source has them, see `dpca.storage.arrays.coordinates`. The
        first axis
                      of the arrays then has its name in the source, such as "time"; the attribute "axes" has "sample".
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import zarr

from dpca.storage import cf
from dpca.storage.arrays.choosing import chosen_array, is_in_order
from dpca.storage.arrays.coordinates import Coordinates, coordinates_in, dims_of
from dpca.storage.arrays.layout import CHANNEL, MAX_CHUNK, SAMPLE, axes_for, named_axes, stack_axes
from dpca.storage.arrays.ome import OMEAxes, axes_of_level
from dpca.storage.arrays.reading import array_in, metadata_texts, model_of, open_group, open_node, root_facts
from dpca.storage.arrays.training_batches import Batches, BatchOrder, batches_of
from dpca.storage.errors import DataError, StoreError, one_line
from dpca.storage.integrity.manifest import EXPORT, digest_of
from dpca.storage.integrity.replaced import reopening
from dpca.storage.numbered import Numbered
from dpca.storage.ranges import checked_range, found_range, type_range
from dpca.storage.remote.network import use_storage_options
from dpca.storage.remote.objects import absolute
from dpca.storage.transaction.workspace import fingerprint_of

STACK_KIND = "stack"
#: The kinds of groups that `open_stack` opens: of other programs, of dpca, and exported images.
STACK_KINDS = ("", STACK_KIND, EXPORT)
STACK_VERSION = 1
#: The source kind of a stack that was written sample by sample, see `dpca.storage.growth.appending`.
APPENDED = "appended samples"
#: The fact of a model, or of scores, that states the variables which they have together.
VARIABLES = "variables"

_KINDS = "buif"  # NumPy kinds of booleans, integers and floats


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack of samples on disk, opened for reading.

    Attributes
    ----------
    path : str
        Path as given to `open_stack`.
    array_path : str
        Absolute path (or URL) of the samples, for ``dpca.storage.arrays.reading.open_array`` inside tasks.
    samples : zarr.Array
        Shape (n_samples, ...), any integer, boolean or float dtype.
    axes : tuple of str
        Names of the axes, beginning with ``"sample"``.
    data_range : tuple of float or None
        Lowest and highest possible value of a sample (0 and 255 for 8-bit images); None if unknown.
    source : dict
        Source of the stack: kind, name, count.
    moved : bool
        Whether the axes of the array must be reordered by `dpca.storage.ingest`; only with ``decoded=False``.
    ome : OMEAxes or None
        Axes of an OME-Zarr image.
    """

    path: str
    array_path: str
    samples: zarr.Array[Any]
    axes: tuple[str, ...]
    data_range: tuple[float, float] | None
    source: dict[str, Any]
    moved: bool = False
    ome: OMEAxes | None = field(default=None, repr=False)
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
        """Decoded size of all samples in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with the content.

        Stores of dpca record it. For other arrays it is computed from the metadata and from one chunk of the first,
        middle and last sample. This distinguishes two arrays, but does not detect changes in other chunks.

        Raises
        ------
        StoreError
            If one of these chunks cannot be read.
        """
        if self._fingerprint is not None:
            return self._fingerprint
        content = [list(named) for named in metadata_texts(self.samples)]
        # The chunk in the middle of a sample is chosen, since corners are black in many stacks.
        middles = zip(self.sample_shape, self.samples.chunks[1:], strict=True)
        starts = [(length // 2 // edge * edge, edge) for length, edge in middles]
        tile = tuple(slice(start, start + edge) for start, edge in starts)
        for index in sorted({0, self.n_samples // 2, self.n_samples - 1}):
            values = np.asarray(self.samples[(slice(index, index + 1), *tile)])
            content.append([str(index), digest_of(values.tobytes())])
        return fingerprint_of(content)

    @cached_property
    def names(self) -> Numbered | np.ndarray[Any, Any]:
        """Names of all samples, NumPy strings of shape (n_samples,). The default name of a sample is its number.

        The names of a synthetic stack are computed on access.
        """
        if self._group is None:
            return np.arange(self.n_samples).astype(np.dtypes.StringDType())
        if model_of(self.samples) is not None:
            return Numbered(self.n_samples)
        return self._column(self._group, "name")

    @property
    def name_array(self) -> zarr.Array[Any] | None:
        """Stored names of the samples, for searches; None if the names are numbers."""
        if self._group is None or model_of(self.samples) is not None:
            return None
        return array_in(self._group, "name")

    def names_at(self, indices: Sequence[int]) -> list[str]:
        """Return the names of some samples. Only the chunks with these names are read."""
        if self._group is None:
            return [str(index) for index in indices]
        if model_of(self.samples) is not None:
            return Numbered(self.n_samples)[np.asarray(indices)]
        stored = array_in(self._group, "name")
        return [str(stored[index]) for index in indices]

    @cached_property
    def labels(self) -> np.ndarray[Any, Any] | None:
        """Labels of all samples, shape (n_samples,); None if the source had no labels."""
        if self._group is None or "label" not in self._group:
            return None
        return self._column(self._group, "label")

    @cached_property
    def rejected(self) -> list[tuple[str, str]]:
        """Name and reason of every rejected sample (``on_error="skip"``)."""
        if self._group is None or "rejected" not in self._group:
            return []
        name, reason = (self._column(self._group, f"rejected/{column}") for column in ("name", "reason"))
        return list(zip(name.tolist(), reason.tolist(), strict=True))

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Names of all axes, and coordinates along them from the group of the array; None if axes have no names."""
        if self.ome is not None and self.ome.along is not None:
            along = self.ome.along
            return None if self.moved else along.arranged(range(len(along.dims)), self.axes[1:])
        folder, between, _ = self.array_path.rstrip("/").rpartition("/")
        dims = dims_of(self.samples)
        try:
            group = self._group or (open_group(folder) if dims and between else None)
        except StoreError:
            return None  # the array is not in a group
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
        """Return the samples in batches, for training. Samples are read during iteration.

        Parameters
        ----------
        batch_size : int
            Samples of a batch. The last batch of a part may be smaller.
        labels : array_like (n_samples, ...), optional
            Labels to return with the batches, such as ``stack.labels``. ``np.arange(n_samples)`` returns the numbers of
            the samples.
        shuffle : int, optional
            Seed of a random order: chunks are read in random order, and the samples of a window of chunks (32 MiB, at
            least 4 chunks) are shuffled. The default is the order of the store.
        epoch : int
            Each epoch has another random order.
        part : (int, int)
            Rank and world size: which part of the samples, of how many parts. Every sample is in one part, and the
            sizes of parts differ by at most one sample, so by at most one batch.
        start : int
            Number of batches to skip at the beginning, to resume an interrupted run.
        standardize : (mean, deviation), optional
            Numbers or arrays that broadcast to a sample. The mean is subtracted, and the result is divided by the
            deviation, or by 1 if the deviation is 0. Batches are then float32, or float64 for values of more than
            2 bytes other than float32.

        Returns
        -------
        Batches
            An iterable of separate arrays (m, *sample_shape), or of (array, labels).

        Raises
        ------
        DataError
            For arguments that do not match the samples.
        """
        last = CHANNEL in self.axes[-1:]
        order = BatchOrder(shuffle, epoch, part, start)
        return batches_of(
            self.samples, batch_size, channels_last=last, labels=labels, order=order, standardize=standardize
        )

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
        A stack store; an array; an OME-Zarr image, which is opened at its highest resolution; or a group with exactly
        one array of two or more axes, or with an array named ``samples``, ``images`` or ``data``. Open any other array
        of a group by ``path/array``.
    data_range : tuple of float, optional
        Lowest and highest possible value of a sample. The default is the range in a stack store. For other arrays it is
        the range of the type for ``bool`` and ``uint8``, and None for other types; jobs then compute it.
    axes : sequence of str, optional
        Names of the axes of one sample, or of all axes, samples first. The default is the names in a stack store, or
        in OME-Zarr. For other arrays it is their ``dimension_names`` (or ``_ARRAY_DIMENSIONS`` of xarray), or else
        `dpca.storage.arrays.layout.axes_for`.
    decoded : bool
        Whether to reject arrays that require decoding or reordering. With False, the caller decodes the values, see
        `dpca.storage.cf`, and moves the axes of OME-Zarr.
    storage_options : mapping, optional
        Options for a path in an object store, see `dpca.storage.use_storage_options`.

    Returns
    -------
    Stack
        The opened stack. Only metadata was read.

    Raises
    ------
    DataError
        If `path` does not exist, has no array of samples or several candidates, or an argument is invalid.
    StoreError
        If there is no Zarr store, or it cannot be read, or it is a dpca store of another kind or of a newer version.
    """
    use_storage_options(storage_options, path)
    where = os.fspath(path)
    node = open_node(where)
    if isinstance(node, zarr.Group):
        facts = root_facts(node)
        if facts and facts.get("kind") != EXPORT:  # an exported image is opened as that of any program
            return _open_ours(where, node, facts, data_range, axes)
        samples, array_path, ome = chosen_array(where, node)
    else:
        samples, array_path, ome = node, where, axes_of_level(where, node)
    _check_samples(where, samples, decoded)
    moved = ome is not None and axes is None and not is_in_order(ome.axes, samples.shape)
    if ome is not None and moved and decoded:
        raise DataError(
            f"'{where}' has the axes {ome.axes} of lengths {samples.shape}, but samples must be first and channels "
            f"last: convert it with `dpca ingest`"
        )
    source = {"kind": "zarr", "name": os.path.basename(where.rstrip("/")), "count": samples.shape[0]}
    return Stack(
        path=where,
        array_path=absolute(array_path),
        samples=samples,
        axes=stack_axes(axes, samples.shape[1:]) if axes is not None else ome.axes if ome else _foreign_axes(samples),
        data_range=checked_range(data_range) if data_range is not None else type_range(np.dtype(samples.dtype)),
        source=source,
        moved=moved,
        ome=ome,
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
        raise StoreError(f"'{where}' has version {version!r}, expected {STACK_VERSION}: ingest the source again")
    if version > STACK_VERSION:
        raise StoreError(
            f"'{where}' is a stack store of version {version}, but this program supports versions up to version "
            f"{STACK_VERSION}: update dpca (pip install --upgrade dask-dpca) or ingest the source again"
        )
    try:
        samples = array_in(group, "samples")
        stated_axes = tuple(str(axis) for axis in facts["axes"])
        # Older stores have the range [c, c] for a constant.
        low, high = found_range(*(float(value) for value in facts["data_range"]))
        fingerprint, source = str(facts["fingerprint"]), dict(facts["source"])
        if source.get("kind") == APPENDED:  # the stored fingerprint was computed before the samples were known
            fingerprint = fingerprint_of(fingerprint, str(facts["content"]))
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise StoreError(
            f"'{where}' is not a complete stack store ({type(error).__name__}: {one_line(error)}): ingest the source "
            f"again"
        ) from error
    if not isinstance(samples, zarr.Array) or samples.ndim != len(stated_axes):
        raise StoreError(
            f"'{where}' is not a complete stack store (axes {stated_axes} do not match its samples): ingest the source "
            f"again"
        )
    return Stack(
        path=where,
        array_path=absolute(f"{where.rstrip('/')}/samples"),
        samples=samples,
        axes=stack_axes(axes, samples.shape[1:]) if axes is not None else stated_axes,
        data_range=checked_range(data_range) if data_range is not None else (low, high),
        source=source,
        _fingerprint=fingerprint,
        _group=group,
    )


def _check_samples(where: str, samples: zarr.Array[Any], decoded: bool) -> None:
    if samples.ndim < 2:
        raise DataError(
            f"'{where}' has the shape {samples.shape}: give an array with samples on axis 0 and at least one more axis"
        )
    if 0 in samples.shape:
        raise DataError(
            f"'{where}' has the shape {samples.shape}: give an array with at least one sample and no empty axis"
        )
    if np.dtype(samples.dtype).kind not in _KINDS:
        raise DataError(f"'{where}' has the dtype {samples.dtype}: give integers, booleans or real floats")
    chunk_bytes = math.prod(samples.chunks) * np.dtype(samples.dtype).itemsize
    if chunk_bytes > MAX_CHUNK:
        raise DataError(f"'{where}' has chunks of {chunk_bytes:,} bytes, above the limit of {MAX_CHUNK:,}: rechunk it")
    if decoded:
        cf.require_plain(where, samples)


def _foreign_axes(samples: zarr.Array[Any]) -> tuple[str, ...]:
    dims = dims_of(samples)
    return (SAMPLE, *((named_axes(dims[1:]) if dims else None) or axes_for(samples.shape[1:])))
