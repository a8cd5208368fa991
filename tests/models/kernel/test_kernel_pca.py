"""KernelPCA: with all samples as landmarks it equals scikit-learn; with some, its bounds hold."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.linalg
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import KernelPCA as Reference
from sklearn.metrics.pairwise import pairwise_kernels

import dpca
from dpca import PCA, KernelPCA, SpectralClustering
from dpca.cli import main
from dpca.engine.folds.plan import PlanError
from dpca.jobs import CompressionSettings, compress, fit_store
from dpca.metrics import variation_of_information
from dpca.models.base.store import load_any
from dpca.storage import DataError, StoreError, open_stack
from tests.helpers.resealing import edit_facts

KERNELS: dict[str, dict[str, Any]] = {
    "rbf": {"gamma": 0.02},
    "poly": {"gamma": 0.05, "degree": 2, "coef0": 0.5},
    "linear": {},
    "cosine": {},
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def samples(n: int = 120, d: int = 8, dtype: Any = np.float64) -> np.ndarray:
    """Samples near a subspace of three dimensions."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(n, 3)) @ rng.normal(size=(3, d)) + 0.1 * rng.normal(size=(n, d))).astype(dtype)


def aligned(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The columns of a with the signs of those of b."""
    return a * np.sign((a * b).sum(axis=0))


X, FRESH = samples()[:90], samples()[90:]


# -- the components


@every_kernel
@pytest.mark.parametrize("how", [{"method": "exact"}, {"n_landmarks": len(X)}], ids=["exact", "all landmarks"])
def test_all_samples_as_landmarks_are_scikit_learns_kernel_pca(kernel: str, how: dict[str, Any]) -> None:
    options = {"kernel": kernel, "alpha": 0.3, **KERNELS[kernel]}
    theirs = Reference(4, fit_inverse_transform=True, **options).fit(X)
    ours = KernelPCA(4, inverse_gamma=options.get("gamma", 1.0), random_state=0, **options, **how).fit(X)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-5)
    for x in (X, FRESH):
        expected = theirs.transform(x)
        scores = ours.transform(x)
        np.testing.assert_allclose(aligned(scores, expected), expected, atol=1e-5 * np.abs(expected).max())
    if "method" in how:
        np.testing.assert_allclose(ours.inverse_transform(scores), theirs.inverse_transform(expected), atol=1e-8)
        np.testing.assert_allclose(aligned(ours.eigenvectors_, theirs.eigenvectors_), theirs.eigenvectors_, atol=1e-9)
        assert ours.residual_ == pytest.approx(0, abs=1e-5 * ours.total_)
    else:
        with pytest.raises(AttributeError, match="eigenvectors_"):
            _ = ours.eigenvectors_
    np.testing.assert_allclose(ours.transform(ours.landmarks_), ours.landmark_scores_, atol=1e-9)
    assert ours.total_ == pytest.approx(
        np.trace(centered(pairwise_kernels(X, metric=kernel, **KERNELS[kernel]))), rel=1e-6
    )


def centered(k: np.ndarray) -> np.ndarray:
    return k - k.mean(axis=0) - k.mean(axis=1)[:, None] + k.mean()


@every_kernel
def test_single_precision_is_as_good_as_it_can_be(kernel: str) -> None:
    expected = Reference(3, kernel=kernel, **KERNELS[kernel]).fit(X)
    ours = KernelPCA(3, kernel=kernel, n_landmarks=90, **KERNELS[kernel], random_state=0).fit(X.astype(np.float32))
    assert ours.landmarks_.dtype == np.float32
    np.testing.assert_allclose(ours.eigenvalues_, expected.eigenvalues_, rtol=1e-5)
    scores = expected.transform(X)
    np.testing.assert_allclose(aligned(ours.transform(X), scores), scores, atol=1e-4 * np.abs(scores).max())


@every_kernel
@pytest.mark.parametrize("how", [{"method": "exact"}, {"n_landmarks": 40}], ids=["exact", "all landmarks"])
def test_samples_far_from_0_lose_nothing(kernel: str, how: dict[str, Any]) -> None:
    far = X[:40, :3] + 3000.0
    reference = Reference(2, kernel=kernel, eigen_solver="dense", **KERNELS[kernel]).fit(far)
    model = KernelPCA(2, kernel=kernel, random_state=0, **how, **KERNELS[kernel]).fit(far)
    np.testing.assert_allclose(model.eigenvalues_, reference.eigenvalues_, rtol=1e-5)
    scores = reference.transform(far)
    np.testing.assert_allclose(aligned(model.transform(far), scores), scores, atol=1e-5 * np.abs(scores).max())
    whole = centered(pairwise_kernels(far, metric=kernel, **KERNELS[kernel])).trace()
    np.testing.assert_allclose(model.total_, whole, rtol=1e-5)
    if kernel != "rbf" and "n_landmarks" in how:
        with pytest.raises(DataError, match="rounding"):
            KernelPCA(2, kernel=kernel, random_state=0, **how, **KERNELS[kernel]).fit(far.astype(np.float32))


def test_one_landmark_and_values_beyond_single_precision_are_ordinary() -> None:
    line = X[:20, :1]
    whole = ((line - line.mean()) ** 2).sum()
    model = KernelPCA(1, kernel="linear", random_state=0).fit(line)
    assert model.landmarks_.shape == (1, 1)
    np.testing.assert_allclose(model.eigenvalues_, [whole])
    assert np.isfinite(model.inverse_transform(model.transform(line))).all()
    huge = KernelPCA(1, kernel="linear", random_state=0).fit(line * 1e30)
    np.testing.assert_allclose(huge.eigenvalues_, [whole * 1e60])


def test_a_precomputed_kernel_is_the_kernel() -> None:
    k = pairwise_kernels(X, metric="rbf", gamma=0.02)
    ours = KernelPCA(3, kernel="precomputed", method="exact").fit(k)
    expected = KernelPCA(3, gamma=0.02, method="exact").fit(X)
    np.testing.assert_allclose(ours.transform(k[:5]), expected.transform(X[:5]), atol=1e-9)
    with pytest.raises(DataError, match="precomputed"):
        ours.inverse_transform(ours.transform(k[:5]))


def test_eigenvalues_are_what_scores_capture_and_the_bound_holds() -> None:
    """Of landmarks that do not span all samples: components are orthonormal in feature space."""
    model = KernelPCA(5, gamma=0.05, n_landmarks=25, random_state=0).fit(X)
    scores = model.transform(X)
    np.testing.assert_allclose((scores**2).sum(axis=0), model.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-9)
    k = pairwise_kernels(model.landmarks_, metric="rbf", gamma=0.05)
    np.testing.assert_allclose(model.coefficients_.T @ k @ model.coefficients_, np.eye(5), atol=1e-9)
    whole = centered(pairwise_kernels(X, metric="rbf", gamma=0.05))
    best = np.sort(np.linalg.eigvalsh(whole))[::-1][:5].sum()
    captured = model.eigenvalues_.sum()
    assert captured <= best <= captured + model.residual_
    assert captured / (captured + model.residual_) < model.captured_bound_ <= captured / best <= 1
    assert np.trace(whole) <= model.total_ <= 1.02 * np.trace(whole)


@settings(max_examples=8, deadline=None)
@given(
    st.integers(5, 40),
    st.integers(1, 6),
    st.sampled_from([np.uint8, np.int16, np.float32, np.float64]),
    st.sampled_from(sorted(KERNELS)),
    st.integers(0, 99),
)
def test_any_shape_and_type_is_at_most_the_best(n: int, d: int, dtype: Any, kernel: str, seed: int) -> None:
    x = (np.random.default_rng(seed).normal(size=(n, d)) * 20 + 100).astype(dtype)
    model = KernelPCA(1, kernel=kernel, degree=2, n_landmarks=max(2, n // 2), random_state=0)
    if d == 1 and kernel == "cosine" and len(np.unique(np.sign(x))) == 1:
        with pytest.raises(DataError, match=r"\b0.directions"):
            model.fit(x)
        return
    model.fit(x)
    wide = x.astype(np.float64)
    names = {"rbf": ("gamma",), "poly": ("gamma", "degree", "coef0")}.get(kernel, ())
    values = {"gamma": model.gamma_, "degree": 2, "coef0": 1.0}
    k = pairwise_kernels(wide, metric=kernel, **{name: values[name] for name in names})
    best = np.linalg.eigvalsh(centered(k))[-1]
    noise = 1e-5 * float(np.abs(k).max()) * n
    assert model.eigenvalues_[0] <= best + noise
    assert best <= model.eigenvalues_[0] + model.residual_ + noise
    assert model.captured_bound_ * best <= model.eigenvalues_[0] + noise


def test_the_default_width_is_the_root_mean_square_distance() -> None:
    far = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    s2 = far[~np.eye(len(X), dtype=bool)].mean()
    assert KernelPCA(2, random_state=0).fit(X).gamma_ == pytest.approx(1 / (2 * s2))


def test_chance_alone_decides_on_landmarks(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=X, chunks=(13, 8))
    models = [KernelPCA(3, n_landmarks=20, landmarks=how, random_state=1).fit(x) for how in ("cholesky", "uniform")
              for x in (X, da.from_array(X, chunks=(50, 3)), tmp_path / "x.zarr")]  # fmt: skip
    for group in (models[:3], models[3:]):
        for model in group[1:]:
            np.testing.assert_array_equal(model.landmarks_, group[0].landmarks_)
            np.testing.assert_allclose(model.eigenvalues_, group[0].eigenvalues_, rtol=1e-9)
    assert models[0].residual_ < models[3].residual_
    own = KernelPCA(3, landmarks=models[0].landmarks_, gamma=models[0].gamma_).fit(X[::-1])
    np.testing.assert_allclose(own.eigenvalues_, models[0].eigenvalues_, rtol=1e-9)


def test_landmarks_find_small_groups_far_away() -> None:
    """One sample in a hundred lies in 20 groups far from all others."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(20, 10)) * 30
    x = rng.normal(size=(4000, 10))
    x[::100] = groups[np.arange(40) % 20] + 0.1 * rng.normal(size=(40, 10))
    for how, least, most in (("cholesky", 20, 20), ("uniform", 0, 5)):
        model = KernelPCA(20, n_landmarks=60, landmarks=how, random_state=0).fit(x)
        near = ((model.landmarks_[:, None] - groups[None]) ** 2).sum(axis=2).min(axis=0) < 25
        assert least <= near.sum() <= most


def test_centers_capture_more_than_as_many_samples() -> None:
    """Beside the optimum, which scikit-learn computes from all kernels."""
    x = load_digits().data[:1000]
    models = {
        how: KernelPCA(10, gamma=5e-4, n_landmarks=100, landmarks=how, random_state=0).fit(x)
        for how in ("cholesky", "uniform", "k-means")
    }
    best = Reference(10, kernel="rbf", gamma=5e-4).fit(x).eigenvalues_.sum()
    missed = {how: 1 - model.eigenvalues_.sum() / best for how, model in models.items()}
    assert 0 < 2 * missed["k-means"] < min(missed["cholesky"], missed["uniform"])
    again = KernelPCA(10, gamma=5e-4, n_landmarks=100, landmarks="k-means", random_state=0).fit(x)
    np.testing.assert_array_equal(again.landmarks_, models["k-means"].landmarks_)
    repeated = np.repeat(x[:5], 20, axis=0)
    few = KernelPCA(2, gamma=5e-4, n_landmarks=50, landmarks="k-means", random_state=0).fit(repeated)
    assert len(few.landmarks_) < 50
    expected = Reference(2, kernel="rbf", gamma=5e-4).fit(repeated).eigenvalues_
    np.testing.assert_allclose(few.eigenvalues_, expected, rtol=1e-3)


def test_duplicates_and_constant_attributes_take_fewer_landmarks() -> None:
    x = np.repeat(X[:6], 20, axis=0)
    model = KernelPCA(5, gamma=0.02, n_landmarks=50, random_state=0).fit(x)
    assert len(model.landmarks_) == 6
    expected = Reference(5, kernel="rbf", gamma=0.02).fit(x)
    np.testing.assert_allclose(model.eigenvalues_, expected.eigenvalues_, rtol=1e-9)
    given = KernelPCA(5, gamma=0.02, landmarks=x[::7]).fit(x)
    assert len(given.landmarks_) == 18
    np.testing.assert_allclose(given.eigenvalues_, expected.eigenvalues_, rtol=1e-9)


# -- incremental fits


def test_batches_and_merges_in_any_order_are_one_fit() -> None:
    fitted = KernelPCA(4, n_landmarks=30, random_state=0).fit(X)
    fixed = {"gamma": fitted.gamma_, "landmarks": fitted.landmarks_}
    a, b = KernelPCA(4, **fixed), KernelPCA(4, **fixed)
    for batch in (X[60:61], X[70:90]):
        a.partial_fit(batch)
    for batch in (X[:60], X[61:70]):
        b.partial_fit(batch)
    assert a.n_samples_seen_ == 21
    a.merge(b)
    np.testing.assert_allclose(a.eigenvalues_, fitted.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(a.transform(X), fitted.transform(X), atol=1e-9)
    assert (a.n_samples_seen_, b.n_samples_seen_) == (90, 69)
    assert a.captured_bound_ <= fitted.captured_bound_
    first = KernelPCA(2, n_landmarks=10, random_state=0).partial_fit(X[:40]).partial_fit(X[40:])
    assert first.landmarks_.shape == (10, 8)
    for refused, says in (
        (lambda: fitted.partial_fit(X), "state"),
        (lambda: a.merge(fitted), "state"),
        (lambda: a.merge(first), "differ in kernel, landmarks"),
        (lambda: a.partial_fit(X[:, :3]), "features"),
        (lambda: KernelPCA(2, method="exact").partial_fit(X), "method is 'exact'"),
        (lambda: KernelPCA(2, n_landmarks=50).partial_fit(X[:40]), "only 40 samples"),
        (lambda: a.merge(PCA(2).fit(X)), "another KernelPCA"),
    ):
        with pytest.raises(DataError, match=says):
            refused()


def test_batches_may_have_names() -> None:
    named = xr.DataArray(X.reshape(90, 2, 4), dims=("time", "y", "x"))
    model = KernelPCA(2, n_landmarks=20, random_state=0).partial_fit(named[:50]).partial_fit(named[50:])
    scores = model.transform(named)
    assert (scores.dims, model.n_samples_seen_) == (("time", "component"), 90)
    np.testing.assert_array_equal(scores, model.transform(named.values))


# -- stores


def test_from_store_to_store(tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    images = (samples(60, 48) * 20 + 128).clip(0, 255).astype(np.uint8).reshape(60, 4, 4, 3)
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(20, 4, 4, 3))
    stack, model = open_stack(tmp_path / "x.zarr"), tmp_path / "m.zarr"
    kernel = ["--kernel", "rbf", "--landmarks", "30", "--components", "5", "--scheduler", scheduler]
    assert main(["fit", str(tmp_path / "x.zarr"), str(model), *kernel]) == 0
    assert "30 landmarks, 5 components, " in capsys.readouterr().out
    assert main(["fit", str(tmp_path / "x.zarr"), str(model), *kernel]) == 0
    assert "nothing to do" in capsys.readouterr().out
    fitted = load_any(model)
    assert (type(fitted), fitted.sample_shape_) == (KernelPCA, (4, 4, 3))
    assert main(["transform", str(model), str(tmp_path / "x.zarr"), str(tmp_path / "s.zarr"), *kernel[-2:]]) == 0
    opened = dpca.open_scores(tmp_path / "s.zarr", model=model)
    np.testing.assert_allclose(opened.scores.compute(), fitted.transform(images), atol=1e-5)
    rounded = np.clip(np.rint(fitted.inverse_transform(fitted.transform(images))), 0, 255)
    assert np.abs(opened.stack().compute() - rounded).max() <= 1
    # Scores replace samples with very many attributes.
    again = KernelPCA(2, n_landmarks=20, random_state=0).fit(opened.scores)
    assert again.transform(opened.scores).compute().shape == (60, 2)
    done = compress(stack, tmp_path / "out.zarr", CompressionSettings(KernelPCA(3, n_landmarks=20, random_state=0)))
    assert (done.report["landmarks"], done.report["components"]) == (20, 3)
    for argv, says in (
        ([*kernel[:4], "--ratio", "3"], "--ratio"),
        ([*kernel, "--overlap", "2"], "--overlap"),
        (["--cell", "2", "--gamma", "1", "--components", "2"], "--gamma"),
    ):
        assert main(["fit", str(tmp_path / "x.zarr"), str(tmp_path / "other.zarr"), *argv]) == 3
        assert says in capsys.readouterr().err


def test_landmarks_of_one_s_own_are_stored(tmp_path: Path) -> None:
    model = KernelPCA(2, landmarks=X[:9].reshape(9, 2, 4), gamma=0.1).fit(X.reshape(-1, 2, 4))
    model.save(tmp_path / "m.zarr")
    again = KernelPCA.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(again.landmarks, model.landmarks)
    np.testing.assert_array_equal(again.transform(X.reshape(-1, 2, 4)), model.transform(X.reshape(-1, 2, 4)))
    assert repr(clone(model)) == repr(model)
    zarr.create_array(str(tmp_path / "x.zarr"), data=X.reshape(-1, 2, 4), chunks=(20, 2, 4))
    stack, other = open_stack(tmp_path / "x.zarr"), clone(model).set_params(landmarks=X[:8].reshape(8, 2, 4))
    assert fit_store(stack, tmp_path / "f.zarr", clone(model)).cost.bytes > 0
    assert fit_store(stack, tmp_path / "f.zarr", clone(model)).cost.bytes == 0
    with pytest.raises(StoreError, match="overwrite"):
        fit_store(stack, tmp_path / "f.zarr", other)
    for fact, value in {"n_landmarks": 8, "gamma": "wide", "parameters": {}, "n_components": 3, "total": None}.items():
        model.save(tmp_path / f"{fact}.zarr")
        edit_facts(tmp_path / f"{fact}.zarr", lambda facts, new={fact: value}: facts.update(new))
        with pytest.raises(StoreError, match="damaged"):
            KernelPCA.load(tmp_path / f"{fact}.zarr")


# -- pre-images


def test_pre_images_come_near_the_samples() -> None:
    """A circle in the plane has one nonlinear coordinate: noise across it is taken away."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 300)
    clean = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    noisy = clean + 0.15 * rng.normal(size=clean.shape)
    errors = {}
    for how in ("ridge", "fixed-point"):
        model = KernelPCA(4, gamma=1.0, n_landmarks=100, pre_image=how, alpha=0.1, random_state=0).fit(noisy)
        errors[how] = np.linalg.norm(model.inverse_transform(model.transform(noisy)) - clean, axis=1).mean()
    before = np.linalg.norm(noisy - clean, axis=1).mean()
    assert max(errors.values()) < 0.8 * before
    # A pre-image of a landmark's own image, by all components, is that landmark: a fixed point.
    model = KernelPCA(8, gamma=1.0, landmarks=clean[:9], pre_image="fixed-point", alpha=1e-9).fit(clean)
    np.testing.assert_allclose(model.inverse_transform(model.transform(clean[:9])), clean[:9], atol=5e-3)


# -- spectral clustering


def test_spectral_clusters_of_all_landmarks_are_those_of_the_whole_matrix() -> None:
    rng = np.random.default_rng(0)
    centers = np.array([[0, 0], [6, 0], [0, 6]])
    truth = np.arange(90) % 3
    x = centers[truth] + rng.normal(size=(90, 2))
    k = pairwise_kernels(x, metric="rbf", gamma=0.2)
    degrees = k.sum(axis=1)
    values, vectors = scipy.linalg.eigh(k / np.sqrt(np.outer(degrees, degrees)))
    rows = vectors[:, ::-1][:, :3]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found = SpectralClustering(3, gamma=0.2, n_landmarks=90, random_state=0).fit(x)
    np.testing.assert_allclose(found.eigenvalues_, values[::-1][:3], rtol=1e-5)
    np.testing.assert_allclose(aligned(found.embedding_, rows), rows, atol=1e-4)
    few = SpectralClustering(3, gamma=0.2, n_landmarks=20, random_state=0).fit_predict(da.from_array(x, chunks=(20, 2)))
    for labels in (found.labels_, few):
        assert variation_of_information(labels, truth) < 0.3
    assert variation_of_information(found.labels_, (found.labels_ + 1) % 3) == 0
    for count, says in ((5, "only 4 directions"), (21, "only 20 samples"), (0, "give a positive integer")):
        with pytest.raises(DataError, match=f"n_clusters.*{count}.*{says}"):
            SpectralClustering(count, gamma=0.2).fit(np.repeat(x[:4], 5, axis=0))


def test_clusters_that_do_not_fit_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    n, k = 20_000, 5
    x = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    model = SpectralClustering(k, gamma=0.2, n_landmarks=10, n_init=2, random_state=0)
    embedding = np.random.default_rng(1).normal(size=(n, k)).astype(np.float32)
    KMeans(k, n_init=1, max_iter=2).fit(embedding[:100])  # imports and compiles
    tracemalloc.start()
    KMeans(k, n_init=2, max_iter=3, random_state=0).fit(embedding)
    need = tracemalloc.get_traced_memory()[1] + embedding.nbytes
    tracemalloc.stop()
    monkeypatch.setattr("dpca.models.kernel.spectral_clustering.usable_bytes", lambda: need)
    with pytest.raises(PlanError, match="k-means"):
        model.fit(x)
    monkeypatch.setattr("dpca.models.kernel.spectral_clustering.usable_bytes", lambda: int(1.3 * need))
    assert model.fit(x).labels_.shape == (n,)


# -- invalid input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kernel": "gauss"}, "kernel is 'gauss'"),
        ({"gamma": 0}, "gamma is 0"),
        ({"gamma": np.nan}, "gamma is nan"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"coef0": -1}, "coef0 is -1"),
        ({"kernel": "poly", "degree": 2.5}, "degree is 2.5"),
        ({"method": "magic"}, "method is 'magic'"),
        ({"landmarks": "all"}, "landmarks is 'all'"),
        ({"landmarks": X[:5, :3]}, "landmarks have dtype float64 and shape"),
        ({"landmarks": X[:5], "n_landmarks": 5}, "n_landmarks is 5"),
        ({"landmarks": X[:5] * np.inf}, "landmarks contain NaN"),
        ({"n_landmarks": 91}, "n_landmarks is 91 .* 90 samples"),
        ({"n_landmarks": 2}, "n_components is 3 .* 2 landmarks"),
        ({"n_landmarks": 5, "method": "exact"}, "method='exact' .* landmarks"),
        ({"pre_image": "none"}, "pre_image is 'none'"),
        ({"pre_image": "fixed-point", "kernel": "linear"}, "kernel is 'linear'"),
        ({"kernel": "precomputed"}, "precomputed"),
        ({"kernel": "precomputed", "method": "exact"}, "square matrix"),
        ({"n_components": 91}, "only 90 samples"),
        ({"kernel": "linear", "n_components": 20}, "8 directions"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says) as told:
        KernelPCA(**{"n_components": 3, **options}).fit(X)
    assert "\n" not in str(told.value)


def test_samples_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"\b1.sample"):
        KernelPCA(1, landmarks=X[:5], gamma=1.0).partial_fit(X[:1]).transform(X)
    for landmarks in ([[1, 2], [3]], X[:0]):
        with pytest.raises(DataError, match="landmarks"):
            KernelPCA(1, landmarks=landmarks).fit(X)
    with pytest.raises(DataError, match="n_init"):
        SpectralClustering(2, n_init=0).fit(X)
    k = X @ X.T
    odd = k.copy()
    odd[3, 4] += 1
    for x, options, says in (
        (np.ones((20, 3)), {}, "gamma has no default"),
        (np.ones((20, 3)), {"gamma": 1.0}, "0 directions"),
        (np.zeros((20, 3)), {"kernel": "linear"}, "not 0"),
        (odd, {"kernel": "precomputed", "method": "exact"}, r"\(3, 4\).*symmetric"),
        (-k, {"kernel": "precomputed", "method": "exact"}, "eigenvalue of -1 .*positive semi-definite"),
        (0 * k, {"kernel": "precomputed", "method": "exact"}, "0 directions"),
        (np.ones((20, 3)), {"gamma": 1.0, "method": "kha"}, "0 directions"),
        (X * 1e80, {"kernel": "poly", "degree": 9, "gamma": 1.0}, "leave the range of numbers"),
    ):
        with pytest.raises(DataError, match=says):
            KernelPCA(1, **options).fit(x)
    monkeypatch.setattr("dpca.models.kernel.large_samples.usable_bytes", lambda: 1000)
    with pytest.raises(PlanError, match=r"n_landmarks=\d"):
        KernelPCA(3, method="exact", memory_budget=40 * 2**20).fit(np.zeros((400, 3)))
    fits = KernelPCA(3, n_landmarks=400, memory_budget=40 * 2**20)
    with pytest.raises(PlanError) as told:
        fits.fit(samples(500))
    most = int(str(told.value).split("n_landmarks=")[1].split(",")[0])
    fits.set_params(n_landmarks=most).fit(samples(500))
    with pytest.raises(PlanError):
        fits.set_params(n_landmarks=most + 1).fit(samples(500))


@pytest.mark.parametrize("seed", range(4))
def test_the_largest_score_of_a_landmark_is_positive(seed: int) -> None:
    """The eigenvectors of the kernels have arbitrary signs, which differ between versions of LAPACK."""
    x = np.random.default_rng(seed).standard_normal((60, 5))
    scores = KernelPCA(6, kernel="rbf", n_landmarks=20, random_state=seed).fit(x).landmark_scores_
    assert (scores[np.abs(scores).argmax(axis=0), np.arange(6)] > 0).all()
