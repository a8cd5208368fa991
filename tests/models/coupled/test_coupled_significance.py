"""Significance of modes of two fields: permutation tests hold their level, and North's rule knows both fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import xarray as xr

from dpca import CCA, MCA
from dpca.models.coupled import coupled_model
from dpca.models.coupled.coupled_significance import permutation_test
from dpca.storage import DataError
from dpca.storage.errors import PlanError


def pair(seed: int, common: float = 0.0, memory: float = 0.0, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Two fields with one mode in common, of some persistence."""
    rng = np.random.default_rng(seed)
    x, y = (scipy.signal.lfilter([1], [1, -memory], rng.normal(size=(n, d)), axis=0) for d in (5, 4))
    shared = common * rng.normal(size=n)
    return x + np.outer(shared, np.ones(5)), y + np.outer(shared, np.ones(4))


@pytest.mark.parametrize("make", [lambda: MCA(2, solver="dual"), lambda: CCA(2, n_pca_modes=4, solver="dual")])
def test_a_common_mode_is_significant_and_the_next_one_is_as_rarely_as_asked(make: Any) -> None:
    called = []
    for seed in range(40):
        model = make().set_params(random_state=1).fit(*pair(seed, common=1.5))
        found = model.permutation_test(n_trials=39)
        np.testing.assert_array_equal(found.singular_value, model.singular_values_)
        assert found.p_value[0] == pytest.approx(1 / 40)
        called.append(found.significant)
    np.testing.assert_array_equal(found.threshold, model.permutation_test(n_trials=39).threshold)
    assert np.sum(called, axis=0)[0] == 40
    assert np.sum(called, axis=0)[1] <= 7  # 2 are expected


def test_unrelated_fields_are_called_significant_as_rarely_as_asked() -> None:
    called = [
        MCA(1, solver="dual", random_state=0).fit(*pair(seed)).permutation_test(n_trials=60, level=0.9).significant[0]
        for seed in range(80)
    ]
    assert 2 <= sum(called) <= 17  # 8 are expected; beyond this by chance once in a hundred times


def test_persistent_fields_require_blocks() -> None:
    def called(length: int) -> int:
        found = 0
        for seed in range(40):
            model = MCA(1, solver="dual", random_state=0).fit(*pair(seed, memory=0.9, n=300))
            found += model.permutation_test(n_trials=40, level=0.9, block_length=length).significant[0]
        return found

    assert called(1) > 3 * max(called(40), 4)


def test_permuted_blocks_are_those_of_numpy() -> None:
    x, y = (f - f.mean(axis=0) for f in pair(0))
    u, s, vt = np.linalg.svd(x.T @ y / 59)
    values = s[:2]
    found = permutation_test(x, y, values, 25, 0.5, 7, seed=5)
    rng, trials = np.random.default_rng(5), []
    for _ in range(25):
        runs = [np.arange(start, min(start + 7, 60)) for start in range(0, 60, 7)]
        order = np.concatenate([runs[i] for i in rng.permutation(9)])
        rest = [f - f @ np.outer(v, v) for f, v in ((x, u[:, 0]), (y, vt[0]))]
        trials.append([np.linalg.svd(a.T @ b[order] / 59)[1][0] for a, b in ((x, y), rest)])
    np.testing.assert_allclose(found.threshold, np.median(trials, axis=0))
    shares = (1 + (np.array(trials) >= values).sum(axis=0)) / 26
    np.testing.assert_allclose(found.p_value, np.maximum.accumulate(shares))


def test_norths_rule_takes_the_autocorrelation_of_both_fields() -> None:
    x, y = pair(0, memory=0.8, n=4000)
    white = pair(1, n=4000)[1]
    for second, factor in ((y, (1 + 0.64) / (1 - 0.64)), (white, 1.0)):
        model = MCA(2).fit(x, second)
        found = model.north_test()
        np.testing.assert_allclose(found.n_eff, 4000 / factor, rtol=0.2)
        np.testing.assert_allclose(found.error, model.singular_values_ * np.sqrt(2 / found.n_eff))
    plain = model.north_test(n_eff=False)
    np.testing.assert_allclose(plain.error, model.singular_values_ * np.sqrt(2 / 4000))


def test_results_have_the_numbers_of_modes() -> None:
    x, y = (xr.DataArray(f, dims=("time", "place")) for f in pair(0, common=1))
    model = MCA(2, solver="dual").fit(x, y)
    for table in (model.north_test(), model.permutation_test(n_trials=5)):
        assert list(table["mode"].values) == [1, 2]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("make", [lambda: MCA(2), lambda: MCA(2, n_pca_modes=3), lambda: CCA(2, n_pca_modes=(3, 0.99))])
def test_the_solver_does_not_matter(make: Any, dtype: str) -> None:
    fields = [field.astype(dtype) + 7 for field in pair(0, common=0.8)]
    names = "singular_value", "threshold", "p_value", "significant"
    found, known = (
        make().set_params(solver=solver, random_state=1).fit(*fields).permutation_test(n_trials=40)
        for solver in ("covariance", "dual")
    )
    for name in names:
        np.testing.assert_allclose(
            getattr(found, name), getattr(known, name), rtol=1e-4 if dtype == "float32" else 1e-9
        )
    of_mean = make().set_params(solver="covariance", random_state=1, gaps="interpolate")
    gappy = fields[0].copy()
    gappy[20, 1] = np.nan
    gaps = of_mean.fit(gappy, fields[1]).permutation_test(n_trials=40)
    again = make().set_params(solver="dual", random_state=1, gaps="interpolate").fit(gappy, fields[1])
    np.testing.assert_allclose(gaps.threshold, again.permutation_test(n_trials=40).threshold, rtol=1e-4)


def test_a_model_without_time_series_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MCA(2, solver="covariance").fit(*pair(0))
    model.save(tmp_path / "m.zarr")
    with pytest.raises(DataError, match="permutation_test"):
        MCA.load(tmp_path / "m.zarr").permutation_test()
    monkeypatch.setattr(coupled_model, "usable_bytes", lambda: 1000)
    with pytest.raises(PlanError, match="n_pca_modes"):
        model.permutation_test()
    with pytest.raises(DataError, match="block_length"):
        MCA(2, solver="dual").fit(*pair(0)).permutation_test(block_length=31)
