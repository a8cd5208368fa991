"""`TrajectoryPCA` of large frames: superposed by blocks of atoms, with the result of whole frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca import TrajectoryPCA
from dpca.engine.sources import superposed
from dpca.engine.sources.lazy_boxes import lazily
from dpca.engine.sources.source import as_source
from dpca.engine.sources.superposed import PlacedSource, SuperposedSource, placements_of
from dpca.kernels.superposition import Superposition, centered
from dpca.models.linear import dual_solver, trajectory_pca
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.kernels.test_superposition import moved

N, ATOMS = 9, 5000
WEIGHTS = np.linspace(1, 16, ATOMS)
FEW = Run(memory=60 * 10**6)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    rng = np.random.default_rng(0)
    structure, modes = rng.normal(0, 8, (ATOMS, 3)), rng.normal(size=(3, ATOMS, 3))
    still = structure + np.tensordot(rng.normal(0, [0.5, 0.3, 0.2], (N, 3)), modes, 1)
    return np.concatenate([moved(rng, one, 1) for one in still + rng.normal(0, 0.02, still.shape)]).astype("f4")


@pytest.fixture(scope="module")
def stored(frames: np.ndarray, tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("frames") / "frames.zarr"
    zarr.create_array(path, data=frames, chunks=(2, 700, 3))
    return Path(path)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Frames of any size are large; the atoms of each block that is read."""
    monkeypatch.setattr(trajectory_pca, "_LARGE_FRAME", 0)
    read: list[int] = []
    sums, place = superposed.sums_of, superposed.place

    def counted(function: Any) -> Any:
        return lambda frames, *rest: (read.append(frames.shape[1]), function(frames, *rest))[1]

    monkeypatch.setattr(superposed, "sums_of", counted(sums))
    monkeypatch.setattr(superposed, "place", counted(place))
    return read


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "by mass"])
@pytest.mark.parametrize(("reference", "whiten"), [("first", True), ("mean", False)])
def test_the_model_is_that_of_whole_frames(
    frames: np.ndarray, stored: Path, tmp_path: Path, monkeypatch: Any, on_disk: bool, weights: Any, reference: str,
    whiten: bool,
) -> None:  # fmt: skip
    given: dict[str, Any] = {"reference": reference, "weights": weights, "whiten": whiten, "random_state": 0}
    whole = TrajectoryPCA(3, **given).fit(frames)
    monkeypatch.setattr(trajectory_pca, "_LARGE_FRAME", 0)
    if on_disk:
        monkeypatch.setattr(dual_solver, "MOST_BYTES", 0)
    model = TrajectoryPCA(3, **given).fit(stored, run=FEW)
    assert model.method_ == "dual"
    np.testing.assert_allclose(model.reference_, whole.reference_, atol=1e-5)
    np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-5)
    signs = np.sign((np.asarray(model.components_) * whole.components_).sum(axis=1))
    scores, again = whole.transform(frames), whole.inverse_transform(whole.transform(frames))
    for one in (model, _saved(model, tmp_path)):
        assert isinstance(one.components_, da.Array) == on_disk
        for samples in (stored, frames):
            np.testing.assert_allclose(np.asarray(one.transform(samples)) * signs, scores, atol=2e-4 * scores.max())
        np.testing.assert_allclose(one.inverse_transform(scores * signs), again, atol=1e-3)
        np.testing.assert_allclose(np.asarray(one.score_samples(stored)), whole.score_samples(frames), rtol=2e-3)
        np.testing.assert_allclose(np.asarray(one.mean_structure_), whole.mean_structure_, atol=1e-4)


def _saved(model: TrajectoryPCA, tmp_path: Path) -> TrajectoryPCA:
    model.save(tmp_path / "model.zarr")
    return TrajectoryPCA.load(tmp_path / "model.zarr")


def test_no_task_places_a_whole_frame(stored: Path, large: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.engine.sources.lazy_boxes.TASK_BYTES", 2**15)
    monkeypatch.setattr(dual_solver, "MOST_BYTES", 0)
    monkeypatch.setattr("dpca.models.base.attribute_blocks._FAST_BLOCK", 2**16)
    model = TrajectoryPCA(2, reference="mean", random_state=0).fit(stored, run=FEW)
    assert large
    assert max(large) < ATOMS  # blocks of neighbors that fit into a task are read together
    model.transform(stored).compute()


@pytest.mark.parametrize("weights", [np.ones(ATOMS), WEIGHTS], ids=["alike", "by mass"])
@pytest.mark.parametrize("lazy", [False, True])
def test_boxes_of_placed_frames(frames: np.ndarray, stored: Path, lazy: bool, weights: np.ndarray) -> None:
    source = as_source(da.from_array(frames, chunks=(2, 900, 2)) if lazy else stored)
    on_reference = Superposition(centered(frames[0].astype(float), WEIGHTS), WEIGHTS, weights)
    placed = PlacedSource(source, placements_of(source, on_reference, Run()), weights)
    region, samples = ((1234, 3001), (1, 3)), (3, 8)
    found, expected = (np.empty((5, 1767, 2), np.float32) for _ in range(2))
    SuperposedSource(source, on_reference).reader()(samples, region, expected)
    for piece in (placed.piece(samples, region), placed.piece((1, N), ((600, 4000), (0, 3))), placed):
        (piece.compute() if hasattr(piece, "dask") else piece).reader()(samples, region, found)
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_boxes_of_a_source_are_its_samples(frames: np.ndarray, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (2_000, 60_000, 2**26):
        monkeypatch.setattr("dpca.engine.sources.lazy_boxes.TASK_BYTES", size)
        found = lazily(as_source(stored))
        assert max(found.chunks[0]) * max(found.chunks[1]) * 12 <= 2 * max(size, 24)
        np.testing.assert_array_equal(found[:5].compute(), frames[:5])


@pytest.mark.usefixtures("large")
def test_workers_find_the_same(stored: Path, cluster: Any) -> None:
    here, there = (
        TrajectoryPCA(2, random_state=0).fit(stored, run=Run(memory=60 * 10**6, client=client))
        for client in (None, cluster)
    )
    np.testing.assert_allclose(there.explained_variance_, here.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(there.components_, here.components_, atol=1e-5)


@pytest.mark.usefixtures("large")
def test_values_that_are_not_finite(frames: np.ndarray, tmp_path: Path) -> None:
    for value, word in ((np.nan, "NaN"), (1e308, "large")):
        changed, path = frames.astype(float), tmp_path / f"{word}.zarr"
        changed[4] = value
        zarr.create_array(path, data=changed, chunks=(1, 900, 3))
        with pytest.raises(DataError, match=word):
            TrajectoryPCA(2, random_state=0).fit(path)
