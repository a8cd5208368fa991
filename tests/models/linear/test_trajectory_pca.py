"""Essential dynamics: beside numpy on superposed frames, and beside MDAnalysis where it is installed."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from scipy.spatial.transform import Rotation

from dpca import TrajectoryPCA
from dpca.engine.sources.source import as_source
from dpca.jobs import fit_store
from dpca.kernels.superposition import Superposition, centered
from dpca.models.base.store import load_any
from dpca.storage import DataError, ingest
from dpca.storage.run import Run
from tests.kernels.test_superposition import moved

ATOMS, N = 20, 60
MASSES = np.linspace(1, 16, ATOMS)
REAL = Path(__file__).parents[4] / "shared" / "data" / "md"


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    """A molecule that moves along three modes and by noise, anywhere in space; nothing is known of its reference."""
    rng = np.random.default_rng(0)
    structure = rng.normal(0, 8, (ATOMS, 3))
    modes = np.linalg.qr(rng.normal(size=(3 * ATOMS, 3)))[0].T
    still = structure + (rng.normal(0, [6, 4, 2], (N, 3)) @ modes).reshape(N, ATOMS, 3)
    still += rng.normal(0, 0.1, still.shape)
    return np.concatenate([moved(rng, one, 1) for one in still]).astype(np.float32)


def exact(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances and components of rows (n, ...), from numpy's own decomposition."""
    x = rows.reshape(len(rows), -1).astype(np.float64)
    _, s, vt = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    return s[:k] ** 2 / (len(x) - 1), vt[:k]


def assert_same_space(a: np.ndarray, b: np.ndarray, atol: float = 1e-6) -> None:
    np.testing.assert_allclose(np.abs(np.sum(a * b, axis=1)), 1, atol=atol)


def on_first(frames: np.ndarray, weights: np.ndarray) -> Superposition:
    return Superposition(centered(frames[0].astype(np.float64), weights), weights, weights)


@pytest.mark.parametrize("weights", [None, MASSES], ids=["alike", "by mass"])
def test_components_of_superposed_frames(frames: np.ndarray, weights: Any) -> None:
    model = TrajectoryPCA(3, reference="first", weights=weights, random_state=0).fit(frames)
    given = np.ones(ATOMS) if weights is None else weights
    superposition = on_first(frames, given)
    rows = superposition.rows_of(frames)
    variances, components = exact(rows, 3)
    np.testing.assert_allclose(model.explained_variance_, variances, rtol=1e-6)
    assert_same_space(model.components_, components)
    scores = model.transform(frames)
    np.testing.assert_allclose(scores.var(axis=0, ddof=1), variances, rtol=1e-5)
    # Wherever a frame lies and however it is turned, its scores are the same.
    turned = (frames - 3) @ Rotation.from_rotvec([1, 2, 3]).as_matrix().astype(np.float32)
    np.testing.assert_allclose(model.transform(turned), scores, atol=2e-4)
    again = model.inverse_transform(scores)
    of_rows = (scores @ model.components_ + model.mean_).reshape(rows.shape)
    np.testing.assert_allclose(again, of_rows / np.sqrt(given)[:, None], atol=1e-4)
    np.testing.assert_allclose(model.mean_structure_, (rows / np.sqrt(given)[:, None]).mean(axis=0), atol=1e-4)
    one = np.array([[1.0, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(np.diff(model.inverse_transform(one), axis=0)[0], -model.modes_[0], atol=1e-4)


def test_the_mean_is_a_reference_that_stands_still(frames: np.ndarray) -> None:
    models = [TrajectoryPCA(3, random_state=0).fit(x) for x in (frames, frames[::-1] + 9)]
    for model in models:
        assert model.reference_moved_ <= 1e-6
        np.testing.assert_allclose(centered(model.mean_structure_, np.ones(ATOMS)), model.reference_, atol=1e-3)
    # Whichever frame it began with.
    np.testing.assert_allclose(models[0].explained_variance_, models[1].explained_variance_, rtol=1e-4)
    # No reference leaves less variance.
    assert models[0].total_variance_ < TrajectoryPCA(3, reference="first").fit(frames).total_variance_


def test_any_source_gives_the_same(frames: np.ndarray, tmp_path: Path, cluster: Any) -> None:
    options: dict[str, Any] = {"reference": frames[5], "method": "incremental-svd", "oversampling": 57}
    wanted = TrajectoryPCA(3, **options).fit(frames)
    zarr.create_array(str(tmp_path / "a"), data=frames, chunks=(7, 5, 2))
    np.save(tmp_path / "a.npy", frames)
    sources = (da.from_array(frames, chunks=(11, 20, 3)), str(tmp_path / "a"), str(tmp_path / "a.npy"))
    for client, source in ((None, sources[0]), (cluster, sources[1]), (None, sources[1]), (cluster, sources[2])):
        model = TrajectoryPCA(3, **options).fit(source, run=Run(client=client))
        np.testing.assert_allclose(model.explained_variance_, wanted.explained_variance_, rtol=1e-5)
        assert_same_space(model.components_, wanted.components_)
        scores = model.transform(source)
        assert isinstance(scores, da.Array)
        np.testing.assert_allclose(scores.compute(), model.transform(frames), atol=1e-4)
    np.testing.assert_allclose(model.score_samples(source).compute(), model.score_samples(frames), rtol=1e-4)
    rows = on_first(frames[5:], np.ones(ATOMS)).rows_of(frames).reshape(N, -1)
    left = rows - model.mean_ - (rows - model.mean_) @ model.components_.T @ model.components_
    np.testing.assert_allclose(model.score_samples(frames), -(left**2).sum(axis=1), rtol=1e-3)
    assert np.isfinite(model.score(frames))
    named = xarray.DataArray(frames, dims=("time", "atom", "xyz"))
    np.testing.assert_array_equal(model.score_samples(named), model.score_samples(frames))
    assert model.score(named) == model.score(frames)


@pytest.mark.parametrize("whiten", [False, True])
def test_a_stored_model_keeps_its_reference(frames: np.ndarray, tmp_path: Path, whiten: bool) -> None:
    stack = ingest(_written(tmp_path, frames), tmp_path / "stack.zarr")
    model = TrajectoryPCA(3, weights=MASSES, fit_weights=np.ones(ATOMS), whiten=whiten, random_state=0)
    found = fit_store(stack, tmp_path / "model", model).model
    again = load_any(tmp_path / "model")
    assert isinstance(again, TrajectoryPCA)
    for name in ("reference_", "weights_", "fit_weights_", "components_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert again.reference_moved_ == found.reference_moved_
    assert again.basis_.fingerprint() == found.basis_.fingerprint()
    scores = again.transform(frames[:7] - 50)
    np.testing.assert_allclose(scores, found.transform(frames[:7]), atol=1e-3)
    if whiten:
        np.testing.assert_allclose(again.transform(frames).std(axis=0, ddof=1), 1, rtol=1e-3)
    moved_by_1 = np.diff(again.inverse_transform(np.eye(4, 3, k=-1)[:2]), axis=0)[0]
    np.testing.assert_allclose(again.modes_[0], moved_by_1, atol=1e-4)
    np.testing.assert_allclose(again.transform(again.inverse_transform(scores)), scores, atol=1e-3)


def _written(folder: Path, frames: np.ndarray) -> Path:
    np.save(folder / "frames.npy", frames)
    return folder / "frames.npy"


def test_frames_one_after_the_other(frames: np.ndarray) -> None:
    model = TrajectoryPCA(3, reference="first", method="incremental-svd", oversampling=57, batch_size=60)
    for start in range(0, N, 20):
        model.partial_fit(frames[start : start + 20])
    whole = TrajectoryPCA(3, reference="first", method="incremental-svd", oversampling=57).fit(frames)
    np.testing.assert_allclose(model.explained_variance_, whole.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(model.transform(frames), whole.transform(frames), atol=1e-3)
    with pytest.raises(DataError, match=r"\(10,.3\).*\(20,.3\)"):
        model.partial_fit(frames[:, :10])


def broken(frames: np.ndarray) -> np.ndarray:
    found = frames.copy()
    found[7, 3, 1] = np.nan
    return found


LINE = np.linspace(0, 1, ATOMS)[:, None] * [1.0, 2, 3]


@pytest.mark.parametrize(
    ("options", "samples", "words"),
    [
        ({}, lambda x: x[:, :2], "2 atoms: .* at least 3"),
        ({}, lambda x: x.reshape(N, -1), r"\(60,\): use positions \(n_frames, n_atoms, 3\)"),
        ({}, broken, "sample 7 of X"),
        ({}, lambda x: np.stack([LINE, *x[1:]]), "lie on one line"),
        ({"fit_weights": np.arange(ATOMS) < 2}, lambda x: x, "2 atoms .* lie on one line"),
        ({"reference": "median"}, lambda x: x, "reference"),
        ({"reference": np.zeros((3, 3))}, lambda x: x, r"\(3, 3\) .*\(20, 3\)"),
        ({"reference": np.full((ATOMS, 3), np.inf)}, lambda x: x, "reference holds a value that is not finite"),
        ({"weights": "mass"}, lambda x: x, "no masses"),
        ({"weights": "charge"}, lambda x: x, "weights"),
        ({"weights": np.ones(3)}, lambda x: x, "for 20 atoms"),
        ({"weights": np.arange(ATOMS)}, lambda x: x, "weights holds 0"),
        ({"fit_weights": -MASSES}, lambda x: x, "least value -16"),
        ({"reference_passes": 0}, lambda x: x, "reference_passes is 0"),
    ],
)
def test_what_is_refused(frames: np.ndarray, options: Any, samples: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        TrajectoryPCA(2, **options).fit(samples(frames))


def test_frames_that_do_not_go_with_a_model(frames: np.ndarray) -> None:
    model = TrajectoryPCA(2).fit(frames)
    with pytest.raises(DataError, match=r"\(19,.3\).*\(20,.3\)"):
        model.transform(frames[:, 1:])
    with pytest.raises(DataError, match="sample.7"):
        model.transform(broken(frames))
    with pytest.raises(DataError, match="partial_fit"):
        TrajectoryPCA(2).partial_fit(frames)


def test_a_plan_holds_what_a_fit_takes(frames: np.ndarray) -> None:
    basis, known = TrajectoryPCA(3).plan_fit(as_source(frames), ("atom", "xyz"), Run())
    assert known
    assert basis.score_shape == (3,)
    assert basis.work_bytes(100, np.float32) > 0


# -- beside MDAnalysis


@pytest.fixture(scope="module")
def atoms() -> Any:
    library = pytest.importorskip("MDAnalysis", reason='needs pip install -e ".[molecules]"')
    if not REAL.exists():
        pytest.skip(f"needs the trajectory of adenylate kinase in {REAL}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield library.Universe(str(REAL / "adk.psf"), str(REAL / "adk_dims.dcd")).select_atoms("name CA")


@pytest.mark.filterwarnings("ignore")
def test_adenylate_kinase_as_mdanalysis_has_it(atoms: Any, tmp_path: Path) -> None:
    from MDAnalysis.analysis.pca import PCA

    theirs = PCA(atoms.universe, select="name CA", align=True).run()
    model = TrajectoryPCA(10, reference="first", oversampling=88, random_state=0).fit(atoms)
    np.testing.assert_allclose(model.explained_variance_, theirs.results.variance[:10].real, rtol=1e-6)
    components = theirs.results.p_components[:, :10].real.T
    signs = np.sign(np.sum(components * model.components_, axis=1))[:, None]
    np.testing.assert_allclose(model.components_, components * signs, atol=1e-6)
    # Every other frame, which is fitted, and the others, which are not: theirs are not superposed by transform.
    half = TrajectoryPCA(3, reference="first", oversampling=45, random_state=0)
    positions = atoms.universe.trajectory.timeseries(atoms, order="fac")
    half.fit(positions[::2])
    unseen = positions[1::2]
    rows = half.transform((unseen + 30) @ np.float32([[0, 1, 0], [-1, 0, 0], [0, 0, 1]]))
    np.testing.assert_allclose(rows, half.transform(unseen), atol=2e-3)
    # A stack that is made of atoms knows their masses.
    stack = ingest(atoms, tmp_path / "ca.zarr")
    by_mass = [TrajectoryPCA(2, weights="mass", random_state=0).fit(x) for x in (atoms, stack)]
    np.testing.assert_array_equal(by_mass[0].weights_, atoms.masses)
    np.testing.assert_allclose(by_mass[0].explained_variance_, by_mass[1].explained_variance_, rtol=1e-5)
