"""Large samples are written box by box: as whole ones are, in less memory, and again after an interruption."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity
from sklearn.base import clone

from dpca import PCA, BandPCA, CellPCA, PatchPCA
from dpca.engine.folds.plan import TASK_OVERHEAD, Outline, PlanError
from dpca.engine.sources.source import as_source
from dpca.jobs.scores import box_write, reconstruct
from dpca.jobs.scores import boxes as boxes_module
from dpca.jobs.scores.box_write import plan_scores
from dpca.jobs.scores.boxes import Boxes
from dpca.jobs.scores.compression import compress
from dpca.jobs.scores.reconstruct import reconstruct_store
from dpca.jobs.scores.score_write import stack_layout
from dpca.jobs.scores.settings import CompressionSettings
from dpca.jobs.scores.transform import transform_store
from dpca.kernels.algebra import linalg
from dpca.kernels.box_quality import windows_in, with_halo
from dpca.kernels.quality import ssim_per_sample
from dpca.models.base import store
from dpca.partition import LappedGrid, Whole
from dpca.representation import base, score_layout
from dpca.representation.linear import LinearRepresentation
from dpca.storage import DataError, Stack, open_stack, verify
from dpca.storage.arrays.layout import Layout, boxes_of
from dpca.storage.run import Run
from tests.helpers.interrupted import interrupt_at
from tests.helpers.sliced import Sliced
from tests.jobs.scores.test_score_write import floats

CASES: dict[str, Any] = {
    "volumes": (floats(5, (70, 50, 36), 0, 255).astype(np.uint8), PCA(3), (1, 17, 20, 36), 3),
    "color": (floats(6, (90, 100, 3), 0, 255).astype(np.uint8), PCA(3), (2, 90, 100, 3), 2),
    "floats": (floats(9, (130, 90), -3, 5).astype(np.float32), PCA(4), (4, 40, 90), 2),
    "one sample a chunk, float64": (floats(5, (130, 110), 0, 1), PCA(2), (1, 130, 110), 2),
    "of variance 1": (floats(6, (90, 100), 0, 255).astype(np.uint8), PCA(3, whiten=True), (2, 90, 100), 2),
    "vectors": (floats(6, (40000,), 0, 1).astype(np.float32), PCA(2), (3, 1000), 0),
    "cells": (floats(5, (70, 50, 36), 0, 255).astype(np.uint8), CellPCA(3, cell_shape=5), (1, 17, 20, 36), 3),
    "long cells": (floats(6, (90, 100, 3), 0, 255).astype(np.uint8), CellPCA(2, cell_shape=(90, 7)), (1, 9, 100, 3), 2),
    "cells of signed": (
        floats(8, (70, 99), -900, 900).astype(np.int16),
        CellPCA(2, cell_shape=(7, 13)),
        (3, 70, 33),
        2,
    ),
    "lapped": (
        floats(5, (70, 99), 0, 255).astype(np.uint8),
        CellPCA(3, cell_shape=(7, 12), overlap=5),
        (1, 17, 40),
        2,
    ),
    "lapped shared colors": (
        floats(6, (90, 100, 3), 0, 255).astype(np.uint8),
        CellPCA(4, cell_shape=8, overlap=4, shared=True),
        (2, 90, 100, 3),
        2,
    ),
    "lapped volumes of floats": (
        floats(5, (70, 50, 36), -3, 5).astype(np.float32),
        CellPCA(2, cell_shape=6, overlap=3),
        (1, 17, 20, 36),
        3,
    ),
    "patches": (floats(5, (95, 140), 0, 255).astype(np.uint8), PatchPCA(3, patch_shape=(5, 4)), (1, 17, 40), 2),
    "patches with gaps between them": (
        floats(6, (90, 100, 3), 0, 255).astype(np.uint8),
        PatchPCA(4, patch_shape=(3, 2), stride=(5, 3)),
        (2, 90, 100, 3),
        2,
    ),
    "patches with weights": (
        floats(5, (70, 99), -3, 5).astype(np.float32),
        PatchPCA(2, patch_shape=4, weights=np.linspace(0, 2, 70 * 99).reshape(70, 99)),
        (1, 17, 40),
        2,
    ),
    "too thin for SSIM": (floats(8, (6, 2000), -900, 900).astype(np.int16), PCA(2), (3, 6, 33), 0),
}
RANGES = {np.uint8: (0, 255), np.int16: (-1000, 1000)}


@pytest.fixture
def small_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample is large, and divided into boxes of at most a thousand values or so."""
    monkeypatch.setattr(boxes_module, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(boxes_module, "_LEAST_BOX", 1000)
    monkeypatch.setattr(boxes_module, "_BOX_BYTES", 100_000)
    monkeypatch.setattr(boxes_module, "_BLOCK_BYTES", 12_000)
    monkeypatch.setattr(boxes_module, "_UNIT_ROWS", 4)
    monkeypatch.setattr(score_layout, "_BOX_LENGTHS", (64, 8, 4, 4))


def stored(folder: Path, name: str) -> tuple[Stack, Any]:
    x, model, chunks, _ = CASES[name]
    array = zarr.create_array(folder / "x.zarr", data=x, chunks=chunks)
    array.attrs["data_range"] = RANGES.get(x.dtype.type, (-3, 5))
    fitted = clone(model).fit(x)
    fitted.save(folder / "model.zarr")
    low, high = RANGES.get(x.dtype.type, (-3.0, 5.0))
    return Stack(**{**vars(open_stack(folder / "x.zarr")), "data_range": (low, high)}), fitted


def same_up_to_ties(x: np.ndarray, y: np.ndarray, width: float) -> None:
    assert x.dtype == y.dtype
    if x.dtype.kind in "iu":
        assert np.abs(x.astype(float) - y.astype(float)).max() <= 1
        assert (x != y).mean() < 1e-3
    else:
        np.testing.assert_allclose(x, y, atol=1e-5 * width)


@pytest.mark.parametrize("name", CASES)
def test_boxes_give_what_whole_samples_give(
    name: str, small_boxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (x, _, _, n_spatial), (stack, model) = CASES[name], stored(tmp_path, name)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "boxes.zarr", reconstruct=True)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "less.zarr", reconstruct=False)
    reconstruct_store(tmp_path / "model.zarr", tmp_path / "boxes.zarr", tmp_path / "again.zarr")
    reconstruct_store(tmp_path / "model.zarr", tmp_path / "boxes.zarr", tmp_path / "first.zarr", n_components=1)
    monkeypatch.setattr(boxes_module, "LARGE_SAMPLE", 2**40)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "whole.zarr", reconstruct=True)
    boxes, whole, less = (zarr.open_group(tmp_path / f"{made}.zarr") for made in ("boxes", "whole", "less"))
    assert prod(boxes["reconstructions"].shards) < x[0].size
    if isinstance(model, PatchPCA):
        assert prod(boxes["scores"].shards) < whole["scores"][0].size
    else:
        assert boxes["scores"].shards[0] == min(4, len(x))
    assert sorted(boxes.array_keys()) == sorted(whole.array_keys())
    low, high = stack.data_range
    scale = 1 if getattr(model, "whiten", False) else np.sqrt(model.explained_variance_.max())
    np.testing.assert_allclose(boxes["scores"][...], whole["scores"][...], atol=1e-5 * scale)
    same_up_to_ties(boxes["reconstructions"][...], whole["reconstructions"][...], high - low)
    rebuilt = boxes["reconstructions"][...]
    a, b = x.astype(float), rebuilt.astype(float)
    mse = ((a - b).reshape(len(x), -1) ** 2).mean(axis=1) / (high - low) ** 2
    np.testing.assert_allclose(boxes["mse"][...], mse, rtol=1e-6)
    for measure in ("mse", "psnr", "ssim") if n_spatial else ("mse", "psnr"):
        np.testing.assert_array_equal(boxes[measure][...], less[measure][...])
        np.testing.assert_allclose(boxes[measure][...], whole[measure][...], rtol=1e-4)
    if n_spatial:
        channels = -1 if x.ndim - 1 > n_spatial else None
        ssim = [
            structural_similarity(p, q, data_range=high - low, channel_axis=channels) for p, q in zip(a, b, strict=True)
        ]
        np.testing.assert_allclose(boxes["ssim"][...], ssim, atol=2e-6)
        same = ssim_per_sample(x, rebuilt, data_range=high - low, n_spatial=n_spatial)
        np.testing.assert_allclose(boxes["ssim"][...], same, atol=1e-6)
    assert "reconstructions" not in less
    np.testing.assert_array_equal(less["scores"][...], boxes["scores"][...])
    same_up_to_ties(open_stack(tmp_path / "again.zarr").samples[...], rebuilt, high - low)
    first = model.basis_.leading(1).decode(boxes["scores"][..., :1])
    same = (np.clip(np.rint(first), low, high) if x.dtype.kind in "iu" else first).astype(x.dtype)
    same_up_to_ties(open_stack(tmp_path / "first.zarr").samples[...], same, high - low)
    assert not verify(tmp_path / "boxes.zarr")
    assert not verify(tmp_path / "again.zarr")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), min_size=1, max_size=3), st.integers(1, 3))
def test_every_window_begins_in_one_box(axes: list[tuple[int, int]], n_spatial: int) -> None:
    shape, box = [n for n, _ in axes], [b for _, b in axes]
    n_spatial = min(n_spatial, len(shape))
    count = windows_in(tuple((0, n) for n in shape), shape, n_spatial)[1]
    assert count == prod(max(0, n - 6) for n in shape[:n_spatial]) * prod(shape[n_spatial:])
    found = 0
    for core in boxes_of(shape, box):
        region, inside = windows_in(core, shape, n_spatial)
        found += inside
        if inside and n_spatial > 1:
            halo = with_halo(core, shape, n_spatial)
            assert all(c <= a and b <= d for (a, b), (c, d) in zip(region, halo, strict=True))
    assert found == count


@pytest.mark.parametrize("name", ["volumes", "cells", "patches"])
def test_an_interrupted_pass_resumes(
    name: str, small_boxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = stored(tmp_path, name)
    model, target = tmp_path / "model.zarr", tmp_path / "out.zarr"
    transform_store(stack, model, tmp_path / "straight.zarr", reconstruct=True)
    begun: list[tuple[str, int, int]] = []
    for kind in (box_write.EncodeBoxes, box_write.DecodeBoxes):
        monkeypatch.setattr(kind, "write", _noting(kind.write, begun, kind.__name__))
    for marks in (1, 3, 2):
        left = iter(range(marks))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupt_at(patch, lambda unit, left=left: next(left, None) is not None)
            transform_store(stack, model, target, reconstruct=True, run=Run(threads=1))
    transform_store(stack, model, target, reconstruct=True, run=Run(threads=1))
    # Each interruption repeats one unit, and nothing else.
    assert len(begun) == len(_units(tmp_path, stack)) + 3
    for made in ("scores", "reconstructions", "mse", "ssim"):
        np.testing.assert_array_equal(
            zarr.open_group(target)[made][...], zarr.open_group(tmp_path / "straight.zarr")[made][...]
        )


def test_workers_of_a_cluster_write_the_same(small_boxes: None, tmp_path: Path, cluster: Any) -> None:
    stack, _ = stored(tmp_path, "cells")
    for name, run in (("here", Run()), ("there", Run(client=cluster))):
        transform_store(stack, tmp_path / "model.zarr", tmp_path / f"{name}.zarr", reconstruct=True, run=run)
    here, there = zarr.open_group(tmp_path / "here.zarr"), zarr.open_group(tmp_path / "there.zarr")
    np.testing.assert_allclose(here["scores"][...], there["scores"][...], rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(here["ssim"][...], there["ssim"][...], atol=1e-6)


def _noting(write: Any, begun: list[Any], name: str) -> Any:
    def note(self: Any, group: int, box: int) -> Any:
        begun.append((name, group, box))
        return write(self, group, box)

    return note


def _units(folder: Path, stack: Stack) -> list[Any]:
    basis, source = store.basis_of(store.load_any(folder / "model.zarr")), as_source(stack)
    boxes = plan_scores(source, basis, stack.axes, reconstruct=True, budget=2**40)
    assert isinstance(boxes, Boxes)
    return [unit for some in (boxes.encoded(basis), boxes.decoded) for unit in boxes.units(source.shape[0], some)]


def test_more_memory_does_not_change_the_boxes_of_an_interrupted_run(
    small_boxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = stored(tmp_path, "volumes")
    left = iter(range(11))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, lambda unit: next(left, None) is not None)
        transform_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", reconstruct=True)
    monkeypatch.setattr(boxes_module, "_BOX_BYTES", 1_000_000)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", reconstruct=True)
    monkeypatch.setattr(boxes_module, "_BOX_BYTES", 100_000)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "straight.zarr", reconstruct=True)
    out, straight = zarr.open_group(tmp_path / "out.zarr"), zarr.open_group(tmp_path / "straight.zarr")
    assert out["reconstructions"].shards == straight["reconstructions"].shards
    np.testing.assert_array_equal(out["reconstructions"][...], straight["reconstructions"][...])


def test_scores_of_patches_are_written_again_if_boxes_change(
    small_boxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, model = stored(tmp_path, "patches")
    left = iter(range(7))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, lambda unit: next(left, None) is not None)
        transform_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr")
    monkeypatch.setattr(boxes_module, "_BOX_BYTES", 40_000)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr")
    scores = zarr.open_group(tmp_path / "out.zarr")["scores"]
    expected = model.transform(stack.samples[...])
    np.testing.assert_allclose(scores[...], expected, atol=1e-5 * np.abs(expected).max())
    assert not verify(tmp_path / "out.zarr")


def test_samples_that_do_not_fit_are_divided(tmp_path: Path) -> None:
    """Samples are not large, but a task has no memory for one of them."""
    x = floats(4, (400, 500), 0, 255).astype(np.uint8)
    source, basis = as_source(x), PCA(2).fit(x).basis_
    axes = ("sample", "y", "x")
    assert plan_scores(source, basis, axes, reconstruct=True, budget=2**30) is None
    whole = plan_scores.__globals__["task_bytes"](source, basis, 1, True)
    boxes = plan_scores(source, basis, axes, reconstruct=True, budget=whole - 2_000_000)
    assert isinstance(boxes, Boxes)
    assert prod(boxes.layout.shards) < x[0].size
    bands = BandPCA(2, band_size=20_000).fit(x).basis_
    for one in (basis, bands):
        with pytest.raises(PlanError, match=r"\bmore\b"):
            plan_scores(source, one, axes, reconstruct=True, budget=10**6)


class Undivided(LinearRepresentation):
    """A representation of whole samples, such as bands."""

    divides = False


def test_models_without_boxes_write_whole_samples() -> None:
    """A shard has a whole sample, however large."""
    axes, shape = ("sample", "z", "y", "x"), (3, 600, 600, 600)
    nothing = np.broadcast_to(np.float32(0), (2, *shape[1:]))
    source = Outline("x", shape, np.dtype("f4"), (1, 8, 8, 8))
    basis = Undivided(LappedGrid(shape[1:], (10, 10, 10), 2), nothing[0], nothing)
    assert plan_scores(source, basis, axes, reconstruct=True, budget=2**60) is None
    for layout in (stack_layout(source, basis, axes), reconstruct.whole_layout(shape, source.dtype, axes, basis)):
        assert layout.shards == (1, 600, 600, 600)
    with pytest.raises(PlanError, match="MB"):
        plan_scores(source, basis, axes, reconstruct=True, budget=2**30)
    divided = plan_scores(
        source, LinearRepresentation(Whole(shape[1:]), nothing[0], nothing), axes, reconstruct=True, budget=2**33
    )
    assert isinstance(divided, Boxes)
    assert prod(divided.layout.shards) * 4 <= 128 * 2**20


@pytest.mark.memory
@pytest.mark.parametrize("cell", [None, (10, 10), (20, 10), "patches"], ids=["whole", "cells", "lapped", "patches"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_no_task_takes_more_than_planned(
    dtype: type, cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample exceeds what a task may take beside the overhead and the model."""
    shape, n = (500, 600), 5
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (n, *shape)).astype(dtype)
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(1, 50, 100), shards=(1, 200, 600))
    if cell == "patches":
        model: Any = PatchPCA(3, patch_shape=(5, 4))
    else:
        model = PCA(3) if cell is None else CellPCA(3, cell_shape=cell, overlap=8 if cell == (20, 10) else 0)
    model.fit(x).save(tmp_path / "model.zarr")
    del x
    stack = Stack(**{**vars(open_stack(tmp_path / "x.zarr")), "data_range": (0.0, 255.0)})
    source, basis = as_source(stack), model.basis_
    monkeypatch.setattr(boxes_module, "LARGE_SAMPLE", 0)
    monkeypatch.setattr(boxes_module, "_LEAST_BOX", 10_000)
    each = {None: 4_000_000, (10, 10): 5_000_000, (20, 10): 12_000_000, "patches": 16_000_000}[cell]
    budget = TASK_OVERHEAD + basis.held_bytes + each
    measured: dict[str, list[int]] = {}
    for kind in (box_write.EncodeBoxes, box_write.DecodeBoxes, reconstruct.RebuildBoxes):
        monkeypatch.setattr(kind, "write", _traced(kind.write, measured.setdefault(kind.__name__, [])))
    run = Run(threads=1, memory=budget)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "s.zarr", reconstruct=True, run=run)
    boxes = plan_scores(source, basis, stack.axes, reconstruct=True, budget=run.task_bytes())
    assert isinstance(boxes, Boxes)
    planned = box_write.box_task_bytes(source, basis, boxes, stack.axes)
    assert planned <= run.task_bytes()
    # The model is read before, once in a process.
    own = planned - TASK_OVERHEAD - basis.held_bytes
    assert 0.2 * own < max(measured["DecodeBoxes"]) <= own + TASK_OVERHEAD
    assert max(measured["EncodeBoxes"]) <= own + TASK_OVERHEAD
    reconstruct_store(tmp_path / "model.zarr", tmp_path / "s.zarr", tmp_path / "r.zarr", run=run)
    assert max(measured["RebuildBoxes"]) <= own + TASK_OVERHEAD


def _traced(write: Any, measured: list[int]) -> Any:
    def traced(*given: Any) -> dict[str, Any]:
        linalg.release_scratch()
        tracemalloc.start()
        try:
            return write(*given)
        finally:
            measured.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    return traced


def test_layouts_of_parts_have_boxes() -> None:
    assert Layout((1, 2, 2), (1, 4, 6)).boxes((5, 6)) == [((0, 4), (0, 6)), ((4, 5), (0, 6))]


@pytest.mark.parametrize("model", [PCA(2), CellPCA(2, cell_shape=5)], ids=["whole", "cells"])
def test_a_job_from_a_file_to_its_report(model: Any, small_boxes: None, tmp_path: Path, monkeypatch: Any) -> None:
    """Ingested in parts, fitted, encoded in boxes, and pictured by overviews."""
    x = CASES["volumes"][0]
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(import_module("dpca.storage.ingest"), "SHARD_BYTES", 2**15)
    for name in ("overviews", "given", "components"):
        monkeypatch.setattr(import_module(f"dpca.plots.{name}"), "LARGE_BYTES", 100)
    monkeypatch.setattr(import_module("dpca.jobs.scores.report"), "LARGE_BYTES", 100)
    settings = CompressionSettings(clone(model), reconstruct=True)
    result = compress(tmp_path / "x.npy", tmp_path / "out.zarr", settings)
    group = zarr.open_group(tmp_path / "out.zarr")
    assert prod(group["reconstructions"].shards) < x[0].size
    a, b = x.astype(float), group["reconstructions"][...].astype(float)
    assert result.report["mse"] == pytest.approx(((a - b) ** 2).mean() / 255**2, rel=1e-6)
    assert list(Path(str(result.folder)).glob("comparison*"))
    assert not verify(tmp_path / "out.zarr")


@pytest.mark.parametrize("name", ["volumes", "long cells"])
def test_only_boxes_of_a_model_are_read(
    name: str, small_boxes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The components may be in a store, from which only slices are read."""
    (x, _, _, n_spatial), (stack, model) = CASES[name], stored(tmp_path, name)
    mean, shape = model.mean_.reshape(x.shape[1:]), (-1, *x.shape[1:])
    basis = replace(model.basis_, mean=Sliced(mean), components=Sliced(model.components_.reshape(shape)))
    monkeypatch.setattr(base, "_HASHED_BYTES", 4000)
    monkeypatch.setattr(boxes_module, "TRIED_BYTES", 4000)
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "numpy.zarr", reconstruct=True)
    for module in (box_write, reconstruct, import_module("dpca.jobs.scores.transform")):
        monkeypatch.setattr(module, "stored_basis", _cached(basis))
    transform_store(stack, tmp_path / "model.zarr", tmp_path / "sliced.zarr", reconstruct=True)
    reconstruct_store(tmp_path / "model.zarr", tmp_path / "sliced.zarr", tmp_path / "again.zarr", n_components=1)
    for made in ("scores", "reconstructions", "mse", "ssim"):
        one, other = (zarr.open_group(tmp_path / f"{kind}.zarr")[made][...] for kind in ("numpy", "sliced"))
        np.testing.assert_array_equal(one, other)
    boxes = plan_scores(as_source(stack), basis, stack.axes, reconstruct=True, budget=2**40)
    assert isinstance(boxes, Boxes)
    halos = [basis.aligned(with_halo(core, boxes.shape, n_spatial)) for core in boxes.decoded]
    largest = max(
        prod(b - a for a, b in region) for region in (*halos, *(around for _, around in boxes.encoded(basis)))
    )
    assert largest < x[0].size
    assert basis.mean.largest <= largest
    assert basis.components.largest <= largest * basis.score_shape[-1]


def _cached(basis: Any) -> Any:
    def stored_basis(*_: Any) -> Any:
        return basis

    stored_basis.cache_clear = lambda: None  # type: ignore[attr-defined]
    return stored_basis


def test_a_value_that_is_not_finite_is_named_and_leaves_nothing(small_boxes: None, tmp_path: Path) -> None:
    stack, _ = stored(tmp_path, "floats")
    zarr.open_array(tmp_path / "x.zarr")[5, 129, 0] = np.nan
    with pytest.raises(DataError, match="5"):
        transform_store(stack, tmp_path / "model.zarr", tmp_path / "out.zarr", reconstruct=True)
    assert not (tmp_path / "out.zarr").exists()
