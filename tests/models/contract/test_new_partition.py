"""A partition and its estimator that the library does not know, vertical strips, go through all that a model can.

They try the recipes of CONTRIBUTING.md for a partition and for a linear estimator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from sklearn.base import clone

import dpca
from dpca import CellPCA
from dpca.engine.sources.source import Source
from dpca.jobs import CompressionSettings, compress, fit_store, reconstruct_store, transform_store
from dpca.models.base.store import StoreContents, StoredModel, load_any
from dpca.models.cells.partitioned import PartitionedPCA
from dpca.partition.base import Partition
from dpca.report.record import read_report
from dpca.storage import open_stack, verify
from dpca.storage.run import Run
from tests.conftest import smooth_images

SHAPE = (14, 12, 3)


@dataclass(frozen=True)
class Strips(Partition):
    """Strips of ``width`` columns from top to bottom; the last one takes the rest."""

    sample_shape: tuple[int, ...]
    width: int

    scores_kind: ClassVar[str] = "strip-scores"

    @property
    def identity(self) -> list[int]:
        return [self.width]

    @property
    def grid_shape(self) -> tuple[int, ...]:
        return (math.ceil(self.sample_shape[1] / self.width),)

    def grid_axes(self, axes: Sequence[str]) -> tuple[str, ...]:
        return ("strip",)

    def n_features(self, index: int) -> int:
        columns = min(self.width, self.sample_shape[1] - index * self.width)
        return math.prod(self.sample_shape) // self.sample_shape[1] * columns

    def split(self, block: Any, parts: Sequence[int], origin: tuple[int, ...], buffer: Any) -> list[Any]:
        found, end = [], 0
        for i in parts:
            strip = block[:, :, i * self.width - origin[1] :][:, :, : self.width]
            start, end = end, end + strip.size
            out = buffer[start:end].reshape(strip.shape)
            out[...] = strip
            found.append(out.reshape(len(block), self.n_features(i)))
        return found

    def join(self, parts: Iterable[tuple[int, Any]], samples: Any) -> Any:
        for first, values in parts:
            for i, part in enumerate(values, first):
                strip = samples[: len(part), :, i * self.width :][:, :, : self.width]
                strip[...] = part.reshape(strip.shape)
        return samples


@dataclass(eq=False, repr=False, kw_only=True)
class StripPCA(PartitionedPCA):
    """One principal component analysis for each strip."""

    width: int

    store_kind: ClassVar[str] = "strip-pca"
    scores_kind: ClassVar[str] = Strips.scores_kind
    part_name: ClassVar[str] = "strip"
    report_title: ClassVar[str] = "Strip PCA"

    def _partition(self, source: Source, axes: Sequence[str] | None, run: Run) -> Strips:
        return Strips(tuple(source.shape[1:]), self.width)

    def _most_components(self, partition: Strips) -> tuple[int, str]:
        return partition.max_features, f"a strip of {partition.width} columns"

    def _name_of(self, place: tuple[int, ...]) -> str:
        return f"strip{place[0]}"

    def fit_description(self, axes: Sequence[str]) -> str:
        return f"strips of {self.width} columns"

    def report_numbers(self) -> dict[str, Any]:
        return super().report_numbers() | {"strips": self.partition_.n_parts}

    def _to_store(self) -> StoreContents:
        return StoreContents(self._stored_arrays(("strip",)), self._facts(width=self.width), self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        shape, k = stored.sample_shape, stored.n_components
        strips = Strips(shape, int(stored.facts["width"]))
        arrays = stored.arrays({"components": (k, *shape), **cls._shapes(shape, strips.grid_shape, k)})
        return cls._restored(stored, strips, arrays, width=strips.width)


@pytest.fixture
def images() -> np.ndarray:
    return smooth_images(60, SHAPE)


@pytest.fixture
def stack(images: np.ndarray, tmp_path: Path) -> Any:
    zarr.create_array(str(tmp_path / "stack.zarr"), data=images, chunks=(7, *SHAPE))
    return open_stack(tmp_path / "stack.zarr")


def test_strips_are_cells_as_high_as_the_image(images: np.ndarray) -> None:
    strips, cells = StripPCA(3, width=5).fit(images), CellPCA(3, cell_shape=(14, 5)).fit(images)
    np.testing.assert_allclose(strips.components_, cells.components_, atol=1e-5)
    scores = strips.transform(images)
    assert scores.shape == (60, 3, 3)
    np.testing.assert_allclose(scores, cells.transform(images)[:, 0], atol=1e-3)
    np.testing.assert_allclose(strips.inverse_transform(scores), cells.inverse_transform(scores[:, None]), atol=1e-3)
    assert strips.get_feature_names_out()[-1] == "strip2_component2"
    streamed = clone(strips).partial_fit(images[:25]).partial_fit(images[25:])
    np.testing.assert_allclose(streamed.explained_variance_, strips.explained_variance_)


def test_they_are_saved_and_used_lazily(images: np.ndarray, stack: Any, tmp_path: Path) -> None:
    fitted = StripPCA(3, width=5).fit(stack)
    fitted.save(tmp_path / "m.zarr")
    again = load_any(tmp_path / "m.zarr")
    assert type(again) is StripPCA
    expected = fitted.transform(images)
    for given in (da.from_array(images, chunks=(13, 4, 9, 2)), stack):
        scores = again.transform(given)
        np.testing.assert_allclose(scores.compute(scheduler="sync"), expected, atol=1e-3)
        back = again.inverse_transform(scores, 2).compute(scheduler="sync")
        np.testing.assert_allclose(back, fitted.inverse_transform(expected, 2), atol=1e-3)


def test_state_and_target_are_stored_without_code_of_its_own(images: np.ndarray, tmp_path: Path) -> None:
    fitted = StripPCA(width=5, target_psnr=30.0, keep_state=True).fit(images[:40])
    fitted.save(tmp_path / "m.zarr")
    again = load_any(tmp_path / "m.zarr")
    assert again.get_params() == fitted.get_params()
    assert again.target_reached_ == fitted.target_reached_
    np.testing.assert_array_equal(
        again.partial_fit(images[40:]).components_, fitted.partial_fit(images[40:]).components_
    )


def test_store_to_store(images: np.ndarray, stack: Any, tmp_path: Path) -> None:
    model, scores, again = (tmp_path / name for name in ("model.zarr", "scores.zarr", "again.zarr"))
    fitted = fit_store(stack, model, StripPCA(3, width=5, random_state=0)).model
    # In threads: the commands start processes, which know what dpca imports.
    transform_store(stack, model, scores)
    assert zarr.open(scores).attrs["dpca"]["kind"] == "strip-scores"
    with xarray.open_zarr(scores, consolidated=False) as opened:
        assert opened["scores"].dims == ("sample", "strip", "component")
    expected = np.clip(np.rint(fitted.inverse_transform(fitted.transform(images), 2)), 0, 255)
    reconstruct_store(model, scores, again, n_components=2)
    np.testing.assert_array_equal(open_stack(again).samples[...], expected)
    np.testing.assert_array_equal(dpca.open_scores(scores, 2, model=model).stack().compute(), expected)
    assert not any(verify(path) for path in (model, scores, again))


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize(
    "model", [StripPCA(3, width=5, random_state=0), StripPCA(width=5, total_components=7, random_state=0)], ids=str
)
def test_a_whole_job(model: StripPCA, stack: Any, tmp_path: Path) -> None:
    done = compress(stack, tmp_path / "out.zarr", CompressionSettings(model))
    report = read_report(done.folder)
    assert report is not None
    assert report["strips"] == 3
    assert report["mse"] == pytest.approx(report["mse_expected"], rel=0.2)
    pictures = {path.stem for path in done.folder.glob("*.png")}
    adapts = {"ranks"} if model.total_components else set()
    assert pictures == {"comparison", "worst", "eigenfaces", "explained_variance", "ssim_histogram"} | adapts
