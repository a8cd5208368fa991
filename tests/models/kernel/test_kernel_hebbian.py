"""KernelPCA by Hebbian steps, beside the best components of the same landmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import KernelPCA
from dpca.engine.folds.plan import PlanError
from dpca.rules import gains_of
from dpca.storage import DataError

OPTIONS: dict[str, Any] = {"n_landmarks": 60, "random_state": 0}


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    """Samples in order of their first attribute: the steps need a random one."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(1500, 4)) * [3, 1.5, 0.8, 0.4]
    return samples[np.argsort(samples[:, 0])].reshape(-1, 2, 2)


@pytest.fixture(scope="module")
def best(x: np.ndarray) -> KernelPCA:
    return KernelPCA(3, **OPTIONS).fit(x)


@pytest.fixture(scope="module")
def fitted(x: np.ndarray) -> KernelPCA:
    return KernelPCA(3, method="kha", n_passes=2, **OPTIONS).fit(x)


def test_steps_come_close_to_the_best_components(x: np.ndarray, best: KernelPCA, fitted: KernelPCA) -> None:
    captured = fitted.eigenvalues_.sum() / best.eigenvalues_.sum()
    assert 0.99 < captured <= 1 + 1e-9
    scores = fitted.transform(x)
    np.testing.assert_allclose(scores.T @ scores, np.diag(fitted.eigenvalues_), atol=1e-6 * fitted.eigenvalues_[0])
    assert abs(scores.mean(axis=0)).max() < 1e-9
    assert fitted.captured_bound_ <= captured
    assert fitted.captured_bound_ > 0.9
    again = KernelPCA(3, method="kha", n_passes=2, **OPTIONS).fit(x)
    np.testing.assert_array_equal(again.coefficients_, fitted.coefficients_)


def test_gains_are_kept(x: np.ndarray, tmp_path: Path) -> None:
    gains = gains_of("smd*", 2.0, 500.0, 0.1)
    model = KernelPCA(3, method="kha", gains=gains, **OPTIONS).fit(x)
    model.save(tmp_path / "model.zarr")
    loaded = KernelPCA.load(tmp_path / "model.zarr")
    assert loaded.gains == gains
    np.testing.assert_array_equal(loaded.transform(x[:9]), model.transform(x[:9]))


def test_wrong_calls(x: np.ndarray) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"method": "kha", "gains": 0.1}, "gains is 0.1"),
        ({"gains": gains_of("t", 1.0, 1.0)}, "gains .* method='nystrom'"),
        ({"n_passes": 2}, "n_passes .* method='nystrom'"),
        ({"method": "kha", "n_passes": 0}, "n_passes"),
        (
            {"method": "kha", "gains": gains_of("constant", 1e6, 1.0)},
            "diverged at update .* smaller eta or meta [^:]*$",
        ),
    ]
    for options, message in wrong:
        with pytest.raises(DataError, match=message):
            KernelPCA(3, **{**OPTIONS, **options}).fit(x)
    with pytest.raises(PlanError):
        KernelPCA(3, method="kha", memory_budget=2**16, **OPTIONS).fit(x)
