"""Components and a mean that are written block by block to a Zarr store, because memory does not hold them."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from dpca.engine.clusters.private import private_folder
from dpca.engine.folds.fold_tasks import ResultWriter
from dpca.engine.folds.identity import digest
from dpca.kernels.algebra.types import Array
from dpca.models.base.convergence import check_result
from dpca.partition.cells import CellGrid
from dpca.representation.on_disk import ArrayOnDisk
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout, axes_for
from dpca.storage.arrays.reading import open_array
from dpca.storage.disk import remove_tree, require_free_space
from dpca.storage.remote.objects import place_of
from dpca.storage.run import Run

# Temporary folders, and the file in each that its process locks.
_PREFIX, _LOCK = "components-", "lock"
#: Components of more bytes are never whole in memory.
MOST_BYTES = 2**28
# Bytes of the components of one shard.
_SHARD_BYTES = 2**24
# Blocks are cut into pieces by prime factors of their lengths up to this one.
_LARGEST_FACTOR = 64


@dataclass(frozen=True)
class ComponentStore(ResultWriter):
    """A Zarr group with components and a mean. Tasks write one block of attributes each, see `ResultWriter`.

    Parameters
    ----------
    folder : str
    grid : CellGrid
        The blocks. A shard is a part of one block, so that no two tasks write to it.
    n_components : int
    dtype : dtype
        Of the components. The mean is float64.
    """

    folder: str
    grid: CellGrid
    n_components: int
    dtype: np.dtype[Any]

    @property
    def kept_bytes(self) -> int:
        """Bytes of a `summary`."""
        return 8 * (self.n_components**2 + 2)

    @property
    def piece(self) -> tuple[int, ...]:
        """Lengths of a shard along the axes of a sample."""
        piece = [*self.grid.cell_shape]
        while math.prod(piece) * self.n_components * self.dtype.itemsize > _SHARD_BYTES:
            factors = {axis: _least_factor(length) for axis, length in enumerate(piece) if length > 1}
            axis = next((axis for axis, factor in factors.items() if factor <= _LARGEST_FACTOR), None)
            if axis is None:
                break
            piece[axis] //= factors[axis]
        return tuple(piece)

    def create(self) -> None:
        """Create the arrays, or open those of an interrupted run.

        Raises
        ------
        StoreError
            If the disk has too little space.
        """
        shape, k = self.grid.sample_shape, self.n_components
        if not os.path.exists(os.path.join(self.folder, "components", "c")):
            size = math.prod(shape) * (k * self.dtype.itemsize + 8)
            require_free_space(self.folder, size, f"{k:,} components and the mean")
        group, axes, piece = create_root(self.folder, kind="components", fingerprint=""), axes_for(shape), self.piece
        create_array(
            group, "components", (k, *shape), self.dtype, Layout((1, *piece), (k, *piece)), ("component", *axes)
        )
        create_array(group, "mean", shape, np.float64, Layout(piece, piece), axes)

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Write the components and the mean of a block of attributes.

        Raises
        ------
        ValueError
            If they are not finite.
        """
        summary = self.summary(result)
        if not all(np.isfinite(values).all() for values in summary.values()):
            raise ValueError("components are not finite: divide the samples by a constant")
        self.write_block(part, result["image"], result["mean"])
        return summary

    def write_block(self, part: int, components: Array, mean: Array) -> None:
        """Write the components (n_components, ...) and the mean of a block of attributes."""
        box = self.grid.box(part)
        lengths = [stop - start for start, stop in box]
        for name, given, rows in (("components", components, (self.n_components,)), ("mean", mean, ())):
            values = given.reshape(*rows, *lengths)
            array = open_array(os.path.join(self.folder, name), mode="r+")
            piece = (array.shards or array.chunks)[len(rows) :]
            for corner in np.ndindex(*(math.ceil(n / p) for n, p in zip(lengths, piece, strict=True))):
                inner = [slice(c * p, min((c + 1) * p, n)) for c, p, n in zip(corner, piece, lengths, strict=True)]
                start = [b + s.start for (b, _), s in zip(box, inner, strict=True)]
                here = values[(*(slice(None) for _ in rows), *inner)]
                write_shard(array, [*(0 for _ in rows), *start], np.ascontiguousarray(here))

    def write_checked(self, part: int, components: Array, mean: Array) -> float:
        """Write a block of attributes as `write_block`, and return the largest absolute value of its mean.

        Raises
        ------
        DataError
            If the components or the mean are not finite.
        """
        check_result({"components": components, "mean": mean}, "the fit", ("components", "mean"))
        self.write_block(part, components, mean)
        return float(max(mean.max(initial=0), -mean.min(initial=0)))

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return the products of the rows of a block, and the squared length and the largest entry of its mean."""
        mean = result["mean"]
        return {
            "inner": result["inner"],
            "mean_square": np.asarray(mean @ mean),
            "mean_largest": np.asarray(np.abs(mean).max(initial=0)),
        }

    def arrays(self, owner: Any) -> dict[str, ArrayOnDisk]:
        """Return ``components`` (n_components, *sample_shape) and ``mean`` (*sample_shape) for reading."""
        return {
            name: ArrayOnDisk.of(open_array(os.path.join(self.folder, name)), owner) for name in ("components", "mean")
        }

    def remove(self) -> None:
        """Remove the store."""
        remove_tree(place_of(self.folder))


class TemporaryFolder:
    """A folder without access for other users; it is removed with the last reference to this object.

    It is locked by this process. A new one also removes those of processes that were killed.
    """

    def __init__(self) -> None:
        within = private_folder()
        for name in os.listdir(within):
            if name.startswith(_PREFIX):
                with suppress(OSError), open(os.path.join(within, name, _LOCK), "rb") as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(os.path.join(within, name), ignore_errors=True)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=within)
        lock = open(os.path.join(self.path, _LOCK), "xb")  # noqa: SIM115 - open as long as the folder is used
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        weakref.finalize(self, _remove, self.path, lock)


def _remove(folder: str, lock: BinaryIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def folder_for(run: Run, *identity: Any) -> tuple[str, TemporaryFolder | None]:
    """Return a folder for components, and its owner: in the checkpoints of a run, else a temporary one."""
    if run.checkpoints is not None:
        return f"{run.checkpoints.folder}/components-{digest(*identity)}", None
    owner = TemporaryFolder()
    return owner.path, owner


def _least_factor(n: int) -> int:
    return next((factor for factor in range(2, math.isqrt(n) + 1) if n % factor == 0), n)
