"""The cell and band rules on arrays of other libraries: what they give for numpy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpca.engine.folds.checkpoint import load_states, save_states
from dpca.kernels.algebra import integers
from dpca.kernels.algebra.namespace import dtype_of, to_numpy
from dpca.rules import IncrementalSVD, StreamingCovariance
from dpca.rules.base.state import State
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.moments import Moments
from dpca.storage.transaction.checkpoints import Checkpoints

Send = Callable[[np.ndarray], Any]
WHOLE = [CovariancePCA(2), Moments(), IncrementalSVD(2), StreamingCovariance(2), Sampled(IncrementalSVD(2))]


def as_given(x: np.ndarray) -> np.ndarray:
    return x


def fold(rule: Any, batches: Sequence[np.ndarray], send: Send = as_given) -> State:
    state = rule.init(batches[0].shape[1], batches[0].dtype)
    for batch in batches:
        state = rule.update(state, send(batch))
    return state


def finished(rule: Any, state: State) -> dict[str, np.ndarray]:
    found = rule.finish(state)
    return {name: to_numpy(array) for name, array in found.items()}


def both(rule: Any, batches: Sequence[np.ndarray], send: Send) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Results there and in numpy."""
    state = fold(rule, batches, send)
    assert type(next(iter(state.arrays.values()))) is type(send(batches[0]))
    return finished(rule, state), finished(rule, fold(rule, batches))


def pixels(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, d), dtype=np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_covariances_of_bytes_are_the_same_to_the_last_bit(send: Send, dtype: type) -> None:
    x = (pixels(5000, 7) // (200 if dtype is bool else 1)).astype(dtype)
    there, here = both(Covariance(), [x[:11], x[11:11], x[11:]], send)
    np.testing.assert_array_equal(there["covariance"], here["covariance"])
    np.testing.assert_array_equal(there["mean"], here["mean"])


def test_the_worst_bytes_stay_exact(send: Send) -> None:
    """Products of 1,024 rows reach 2**24; longer ones are not exact and must be taken again."""
    x = np.full((4096, 3), 255, np.uint8)
    x[::2, 1] = 0
    x[:1000] = 128 + pixels(1000, 3) % 2  # the first products suggest that longer ones are exact
    there, here = both(Covariance(), [x[:1000], x[1000:]], send)
    np.testing.assert_array_equal(there["covariance"], here["covariance"])


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("center", [True, False])
def test_covariances_of_other_dtypes(send: Send, dtype: type, center: bool) -> None:
    rng = np.random.default_rng(1)
    x = (100 + rng.normal(0, 30, (1500, 6)) @ rng.normal(0, 0.4, (6, 6))).astype(dtype)
    there, here = both(Covariance(center=center), [x[:300], x[300:]], send)
    tolerance = 1e-12 if dtype in (np.float64, np.int32) else 2e-6
    scale = np.sqrt(np.outer(here["covariance"].diagonal(), here["covariance"].diagonal()))
    assert np.abs((there["covariance"] - here["covariance"]) / scale).max() < tolerance
    np.testing.assert_allclose(there["mean"], here["mean"], rtol=1e-7)


def test_a_half_precision_stack(send: Send) -> None:
    if send(np.zeros(1)).__class__.__module__.startswith("array_api_strict"):
        pytest.skip("the standard has no float16")
    x = np.random.default_rng(2).normal(3, 1, (100, 4)).astype(np.float16)
    there, here = both(Covariance(), [x], send)
    np.testing.assert_allclose(there["covariance"], here["covariance"], atol=1e-5)


def test_the_shift_moves_after_a_batch_that_lies_far(send: Send) -> None:
    x = np.random.default_rng(3).normal(size=(400, 5)).astype(np.float32)
    x[40:] += 20_000
    there, here = both(Covariance(), [x[:40], x[40:]], send)
    np.testing.assert_allclose(there["covariance"], here["covariance"], rtol=1e-5, atol=1e-4)
    wide = np.cov(x.astype(float), rowvar=False)
    np.testing.assert_allclose(np.linalg.eigvalsh(there["covariance"]), np.linalg.eigvalsh(wide), rtol=2e-5)


@pytest.mark.parametrize("unit", [1e-38, 1e-26, 1e20, 3e37])
def test_units_whose_squares_float32_cannot_hold(send: Send, unit: float) -> None:
    x = (np.random.default_rng(4).standard_normal((300, 4)) * unit).astype(np.float32)
    there, _ = both(Covariance(), [x[:100], x[100:]], send)
    np.testing.assert_allclose(there["covariance"] / unit**2, np.cov(x.astype(float) / unit, rowvar=False), atol=3e-6)


def test_merging(send: Send) -> None:
    x = np.random.default_rng(5).normal(size=(300, 5)).astype(np.float32)
    x[200:] += 3
    for rule in (Covariance(), Moments()):
        parts = [fold(rule, [part], send) for part in (x[:90], x[90:200], x[200:])]
        empty = rule.init(5, x.dtype)
        joined = rule.merge(rule.merge(rule.merge(empty, parts[0]), parts[1]), rule.init(5, x.dtype))
        there, here = finished(rule, rule.merge(joined, parts[2])), finished(rule, fold(rule, [x]))
        for name in here:
            np.testing.assert_allclose(there[name], here[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(send: Send, bad: float) -> None:
    x = np.ones((20, 3), np.float32)
    x[7, 1] = bad
    with pytest.raises(ValueError, match="float64"):
        Covariance().finish(fold(Covariance(), [x], send))


def test_one_sample_is_refused(send: Send) -> None:
    for rule in (Covariance(), Moments()):
        with pytest.raises(ValueError, match=r"\b2\b"):
            rule.finish(fold(rule, [np.ones((1, 3), np.float32)], send))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_batch_is_left_as_it_was(send: Send, dtype: type) -> None:
    x = np.arange(60, dtype=dtype).reshape(20, 3)
    batch = send(x.copy())
    for rule in WHOLE:
        rule.finish(rule.update(rule.init(3, x.dtype), batch))
    np.testing.assert_array_equal(to_numpy(batch), x)


@pytest.mark.parametrize(("d", "k"), [(9, None), (60, 5), (220, 4)])
def test_components(send: Send, d: int, k: int | None) -> None:
    """The last size is one for orthogonal iteration."""
    rng = np.random.default_rng(6)
    x = (rng.normal(size=(400, d)) * 0.8 ** np.arange(d)) @ rng.normal(size=(d, d)) + 0.01 * rng.normal(size=(400, d))
    there, here = both(CovariancePCA(k), [x[:150], x[150:]], send)
    for name in ("explained_variance", "total_variance", "mean"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(there["components"] * here["components"], axis=1))[:4], 1, atol=1e-7)
    largest = np.abs(there["components"]).argmax(1)
    assert (there["components"][np.arange(len(largest)), largest] > 0).all()


def test_least_components(send: Send) -> None:
    x = np.random.default_rng(7).normal(size=(90, 7)) * [7, 6, 5, 4, 3, 2, 1]
    there, here = both(CovariancePCA(2, n_least=3), [x], send)
    for name in ("least_variance", "least_components", "components"):
        np.testing.assert_allclose(there[name], here[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64])
def test_moments(send: Send, dtype: type) -> None:
    x = np.random.default_rng(8).normal(100, 20, (700, 600)).astype(dtype)
    there, here = both(Moments(), [x[:3], x[3:400], x[400:]], send)
    np.testing.assert_allclose(there["mean"], here["mean"], rtol=1e-13)
    np.testing.assert_allclose(there["variance"], here["variance"], rtol=1e-11)


@pytest.mark.parametrize("options", [{}, {"center": False}, {"forgetting": 0.99}], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_incremental_svd(send: Send, dtype: type, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(9)
    x = 120 + (rng.normal(0, 30, (350, 12)) * 0.6 ** np.arange(12)) @ np.linalg.qr(rng.normal(size=(90, 12)))[0].T
    x = np.clip(x + rng.normal(0, 0.3, x.shape), 0, 255).astype(dtype)
    rule = IncrementalSVD(3, oversampling=7, **options)
    there, here = both(rule, [x[:20], x[20:220], x[220:]], send)
    for name in ("explained_variance", "total_variance", "kept_energy", "captured_bound", "mean"):
        np.testing.assert_allclose(there[name], here[name], rtol=2e-5)
    np.testing.assert_allclose(np.sum(there["components"] * here["components"], axis=1), 1, atol=1e-4)
    joined = rule.merge(fold(rule, [x[:200]], send), fold(rule, [x[200:]], send))
    merged = finished(rule, rule.merge(rule.init(90, x.dtype), joined))
    np.testing.assert_allclose(merged["explained_variance"], here["explained_variance"], rtol=1e-3)
    assert merged["components"].dtype == (np.float64 if dtype is np.float64 else np.float32)


def test_incremental_svd_of_few_samples_in_tiny_units(send: Send) -> None:
    """Directions that no sample has are filled up; squares of 1e-30 are 0 in float32."""
    x = (np.random.default_rng(10).normal(size=(4, 30)) * 1e-30).astype(np.float32)
    x[1:] = x[:1] * np.array([[2], [5], [7]], np.float32)
    there, here = both(IncrementalSVD(3), [x], send)
    np.testing.assert_allclose(there["explained_variance"], here["explained_variance"], rtol=1e-4, atol=1e-70)
    np.testing.assert_allclose(there["components"] @ there["components"].T, np.eye(3), atol=1e-5)


@pytest.mark.parametrize("rule", WHOLE, ids=lambda rule: type(rule).__name__)
def test_a_state_that_was_kept_goes_on_anywhere(send: Send, rule: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(11).normal(size=(120, 6)).astype(np.float32) * [6, 5, 4, 3, 2, 1]
    kept = Checkpoints(str(tmp_path))
    save_states(kept, "one", [fold(rule, [x[:50]], send)])
    loaded = load_states(kept, "one")
    assert loaded is not None
    state = rule.update(loaded[0], send(x[50:90]))
    assert all(isinstance(array, np.ndarray) for array in state.to_numpy().arrays.values())
    found, here = finished(rule, rule.update(state.copy(), x[90:])), finished(rule, fold(rule, [x]))
    for name in here:
        np.testing.assert_allclose(found[name], here[name], rtol=1e-4, atol=1e-4)


def test_a_dtype_that_numpy_does_not_know() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="bfloat16"):
        Covariance().update(Covariance().init(2, np.float32), torch.zeros((3, 2), dtype=torch.bfloat16))


def test_a_dtype_that_another_package_added_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ml_dtypes` adds bfloat16."""
    added = pytest.importorskip("numpy._core._rational_tests").rational
    monkeypatch.setitem(np.sctypeDict, "rational", added)
    assert np.dtype("rational") == added
    with pytest.raises(TypeError, match="rational"):
        dtype_of(SimpleNamespace(dtype="other.rational"))


def test_integer_products_are_for_numpy_alone(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "kernel", None)
    fold(Covariance(), [pixels(10, 3)], send)
