"""Fits of bands of few large samples, in two passes over blocks of attributes."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpca.engine.folds.fold_tasks import Results, ResultWriter
from dpca.engine.folds.plan import FoldPlan, PlanError
from dpca.engine.folds.rehearsal import rehearsal
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array, Region
from dpca.models.base.attribute_blocks import attribute_blocks
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.joined_blocks import JoinedBlocks
from dpca.models.base.mapped import mapped_array
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes, SetFitted
from dpca.models.cells.partition_rule import FEW_SAMPLES, PartFold, joined_variances
from dpca.models.linear.component_store import MOST_BYTES, ComponentStore, folder_for
from dpca.partition.bands import Bands
from dpca.partition.base import Partition
from dpca.partition.cells import CellGrid
from dpca.representation.by_blocks import LARGE_SAMPLE
from dpca.representation.on_disk import ArrayOnDisk
from dpca.rules.covariance.band_blocks import BandGrams, BandImages, band_components
from dpca.rules.covariance.moments import Moments
from dpca.storage.arrays.arrays import create_array, create_root, write_shard
from dpca.storage.arrays.layout import Layout, axes_for, box_shape, boxes_of
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.run import Run

# Attributes of a shard of the labels.
_LABELS_OF_A_SHARD = 2**20


def are_few(n_samples: int, partition: Partition) -> bool:
    """Return whether samples are few, so that their bands can be fitted by blocks of attributes."""
    return n_samples <= FEW_SAMPLES * partition.max_features


def is_large(shape: Sequence[int]) -> bool:
    """Return whether samples of a shape are large, in float64: they are read in blocks of attributes."""
    return 8 * math.prod(shape) > LARGE_SAMPLE


class BandsByBlocks(ResultWriter):
    """Adds up the Gram matrices of bands in a first pass, and finds the components in a second one.

    Parameters
    ----------
    source : Source
    partition : Bands
    k : int
        Number of components of a band.
    least : int
        Least number of components that the model keeps.
    run : Run
    before : int
        Bytes that finding the bands takes in this process, before the fit.
    disk : bool
        Whether components may be on disk.
    beside : int
        Bytes of further arrays of the model in this process.
    """

    in_tasks: ClassVar[bool] = False

    def __init__(
        self,
        source: Source,
        partition: Bands,
        k: int,
        least: int,
        run: Run,
        *,
        before: int,
        disk: bool,
        beside: int,
    ) -> None:
        self._passes, self._partition, self._k, self._least = Passes(source, run), partition, k, least
        self._before, self._disk, self._beside = before, disk, beside
        self._lock, self._early, self._next = threading.Lock(), dict[int, dict[str, Array]](), 0
        self._largest, self._labels = 0.0, _labels_for(partition, source, self._passes.run)
        n, self._dtype = source.shape[0], working_dtype(source.dtype)
        self._gram = no_values((partition.n_parts, n, n), np.float64)
        self._rule = BandGrams(n, self._labels, (), partition.n_parts, sample_weight=source.weights)
        self._grid = attribute_blocks(self._rule, self._passes, planned=self._planned)
        self._rule = replace(self._rule, regions=_regions(self._grid))
        self._image_blocks(no_values((partition.n_parts, least, n), np.float64))

    def fold(self) -> BandFold:
        """Return the first pass."""
        n, count = self._rule.n_samples, self._partition.n_parts
        note = (
            f"{self._grid.n_parts} blocks of attributes were read in two passes; Gram matrices of {n:,} samples were "
        )
        note += f"used instead of the covariances of {count:,} bands"
        return BandFold(self._rule, self._rule, self._grid, self._planned(self._grid), note, writer=self)

    def _planned(self, grid: CellGrid) -> FoldPlan:
        """Return the plan of a pass, with all that this process holds of the fit."""
        plan = self._passes.plan(grid, self._rule, self)
        bands, d, k = self._partition, math.prod(self._partition.sample_shape), self._least
        # Gram matrices, and turns with their eigenproblems; results and Python objects of all bands; the bands.
        held = self._gram.nbytes + 16 * bands.n_parts * self._k * self._rule.n_samples + 2_500 * bands.n_parts
        held += bands.labels.nbytes + (0 if self._on_disk(k) else d * (8 + k * self._dtype.itemsize))
        plan = replace(plan, held_bytes=max(plan.held_bytes + held + self._beside, self._before))
        if plan.caller_bytes > usable_bytes():
            raise PlanError(
                f"the bands of samples of {d:,} attributes need {plan.caller_bytes / 1e6:,.0f} MB of memory, and this "
                f"process may use {usable_bytes() / 1e6:,.0f} MB: use larger bands, or CellPCA"
            )
        return plan

    def _on_disk(self, k: int) -> bool:
        """Return whether components are written to a store: if they are large, or memory is small."""
        d = math.prod(self._partition.sample_shape)
        size = d * k * self._dtype.itemsize
        return self._disk and (size > MOST_BYTES or size + 12 * d > usable_bytes())

    def _image_blocks(self, turns: Array) -> tuple[CellGrid, BandImages]:
        """Return the blocks of attributes and the rule of the second pass."""
        rule = BandImages(**{**vars(self._rule), "turns": turns})
        grid = attribute_blocks(rule, self._passes, planned=lambda grid: self._passes.plan(grid, rule, self))
        return grid, replace(rule, regions=_regions(grid))

    # -- the first pass

    @property
    def kept_bytes(self) -> int:
        """Bytes of what remains of the result of a block."""
        return 8

    def summary(self, result: dict[str, Array]) -> dict[str, Array]:
        """Return nothing, as `write_all`."""
        return {}

    def write(self, part: int, result: dict[str, Array]) -> dict[str, Array]:
        """Add the Gram matrices of a block, in the order of the blocks: the sum is the same for any workers."""
        with self._lock:
            self._early[part] = result
            if self._next == 0 and not self._gram.flags.writeable:
                self._gram = np.zeros(self._gram.shape)
            while (found := self._early.pop(self._next, None)) is not None:
                self._gram += found["gram"]
                self._largest = max(self._largest, float(found["mean_largest"]))
                self._next += 1
        return {}

    # -- the second pass

    def results(self) -> Results:
        """Return the variances of all bands, and components that take no memory."""
        bands = self._partition
        if rehearsal() is not None:
            variances = np.ones((bands.n_parts, self._k))
            totals = variances.sum(axis=1)
        else:
            divisor = self._rule.weights_of(self._rule.n_samples)[1]
            self._turns, variances, totals = band_components(self._gram, self._k, divisor)
            self._gram = no_values(self._gram.shape, np.float64)
        largest = np.asarray(self._largest)
        sizes = [bands.n_features(i) for i in range(bands.n_parts)]
        return [
            {
                "explained_variance": variances[i, : min(self._k, d)],
                "total_variance": totals[i],
                "components": no_values((min(self._k, d), d), self._dtype),
                "mean_largest": largest,
            }
            for i, d in enumerate(sizes)
        ]

    def joined(self, k: int, results: Results) -> dict[str, Any]:
        """Return components of whole samples, on disk if they are large, their mean, and variances.

        ``results`` state how many components each band keeps.
        """
        shape, variances = self._partition.sample_shape, joined_variances(k, self._partition, results)
        if rehearsal() is not None:
            return {
                "components": no_values((k, *shape), self._dtype),
                "mean": no_values(shape, np.float64),
                **variances,
            }
        turns = self._turns[:, :k]
        for i, result in enumerate(results):
            turns[i, len(result["components"]) :] = 0
        grid, rule = self._image_blocks(np.ascontiguousarray(turns))
        if self._on_disk(k):
            folder, owner = folder_for(self._passes.run, rule, grid, self._passes.source)
            store = ComponentStore(folder, grid, k, self._dtype)
            store.create()
            self._passes.over(grid, rule, writer=store, stage="components")
            return store.arrays(owner) | variances
        arrays = {"image": np.empty((k, *shape), self._dtype), "mean": np.empty(shape)}
        self._passes.over(grid, rule, writer=JoinedBlocks(grid, arrays), stage="components")
        return {"components": arrays["image"], "mean": arrays["mean"], **variances}


@dataclass(frozen=True)
class BandFold(PartFold):
    """The first pass of a fit of bands by blocks of attributes."""

    writer: BandsByBlocks | None = None

    def callback(self, callbacks: FitCallbacks | None, set_fitted: SetFitted, n_samples: int) -> None:
        """Return None: there are no components before the second pass."""

    def joined(self, results: Results) -> Results:
        """Return the results of all bands."""
        return [] if self.writer is None else self.writer.results()


def moments_in_files(source: Source, run: Run) -> tuple[Array, Array]:
    """Return the mean and the variance (*sample_shape) of each attribute, float64, in files that are mapped to memory.

    They are found in a pass over blocks of attributes.
    """
    passes, shape = Passes(source, run), tuple(source.shape[1:])
    grid = attribute_blocks(Moments(), passes)
    found = {name: mapped_array(shape, np.float64, "means and variances") for name in ("mean", "variance")}
    if rehearsal() is None:
        passes.over(grid, Moments(), writer=JoinedBlocks(grid, found), stage="statistics")
    return found["mean"], found["variance"]


def _regions(grid: CellGrid) -> tuple[Region, ...]:
    return tuple(map(grid.region, range(grid.n_parts)))


def _labels_for(partition: Bands, source: Source, run: Run) -> Array | ArrayOnDisk:
    """Return the bands of all attributes for tasks: in memory, or for a cluster in a store that its workers read."""
    if run.client is None or rehearsal() is not None:
        return partition.labels
    labels, shape = partition.labels, partition.sample_shape
    folder, owner = folder_for(run, "bands", partition, source)
    box = box_shape(shape, _LABELS_OF_A_SHARD, (1,) * len(shape))
    group = create_root(folder, kind="bands", fingerprint="")
    array = create_array(group, "labels", shape, np.int32, Layout(box, box), axes_for(shape))
    for region in boxes_of(shape, box):
        here = labels[tuple(slice(*ends) for ends in region)]
        write_shard(array, [start for start, _ in region], np.ascontiguousarray(here))
    return ArrayOnDisk.of(array, owner)
