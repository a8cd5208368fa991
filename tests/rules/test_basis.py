"""What every sequential rule promises, whatever its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from streams import fit, fold, lost_variance, planted

from dpca.kernels import linalg
from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja
from dpca.rules.block_power import BlockPower
from dpca.rules.ccipca import CCIPCA
from dpca.rules.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from dpca.rules.krasulina import Krasulina
from dpca.rules.oja import Oja, OjaSubspace
from dpca.rules.sanger import Sanger
from dpca.rules.schedules import Delayed
from dpca.rules.similarity_matching import SimilarityMatching

SLOW = Delayed(0.1, 100)
RULES = {
    "oja": lambda k, **o: Oja(k, **o),
    "oja-every-3": lambda k, **o: Oja(k, orthonormalize_every=3, **o),
    "oja-subspace": lambda k, **o: OjaSubspace(k, SLOW, **o),
    "krasulina": lambda k, **o: Krasulina(k, **o),
    "sanger": lambda k, **o: Sanger(k, SLOW, **o),
    "implicit-krasulina": lambda k, **o: ImplicitKrasulina(k, **o),
    "explicit-krasulina": lambda k, **o: ExplicitKrasulina(k, SLOW, **o),
    "block-power": lambda k, **o: BlockPower(k, **o),
    "block-power-momentum": lambda k, **o: BlockPower(k, momentum=0.001, **o),
    "accelerated-block-power": lambda k, **o: AcceleratedBlockPower(k, **o),
    "accelerated-oja": lambda k, **o: AcceleratedOja(k, **o),
    "ccipca": lambda k, **o: CCIPCA(k, **o),
    "similarity-matching": lambda k, **o: SimilarityMatching(k, **o),
}
# Their answer is that of one block.
LOSSY = {"block-power", "block-power-momentum"}

each = pytest.mark.parametrize("name", RULES)


def check(found: dict[str, np.ndarray], k: int, d: int) -> None:
    assert found["components"].shape == (k, d)
    assert found["explained_variance"].shape == (k,)
    assert found["mean"].shape == (d,)
    assert found["total_variance"].shape == ()
    for key in ("mean", "explained_variance", "total_variance"):
        assert found[key].dtype == np.float64
    assert all(np.isfinite(a).all() for a in found.values())
    rows = found["components"].astype(float)
    assert np.abs(rows @ rows.T - np.eye(k)).max() < 3e-6
    assert (np.diff(found["explained_variance"]) <= 0).all()
    assert (found["explained_variance"] >= 0).all()
    assert (rows[np.arange(k), np.abs(rows).argmax(1)] > 0).all()


@each
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64])
def test_it_finds_the_components_of_any_dtype(name: str, dtype: type) -> None:
    x = planted()
    wide = (20 * x + 100).clip(0, 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)
    options = {"unit": 20.0} if np.dtype(dtype).kind in "iu" and hasattr(RULES[name](3), "unit") else {}
    before = wide.copy()
    found = fit(RULES[name](3, **options), wide)
    np.testing.assert_array_equal(wide, before)
    check(found, 3, 30)
    exact = wide.astype(float)
    assert lost_variance(found["components"], exact) < (0.05 if name in LOSSY else 0.005)
    truth = np.linalg.eigvalsh(np.cov(exact, rowvar=False))[::-1][:3]
    np.testing.assert_allclose(found["explained_variance"], truth, rtol=0.2)
    np.testing.assert_allclose(found["mean"], exact.mean(0), rtol=1e-5)
    assert found["total_variance"] == pytest.approx(exact.var(0, ddof=1).sum(), rel=1e-5)


@each
@pytest.mark.parametrize("n", [1, 2, 3, 5, 23])
@pytest.mark.parametrize("rows", [1, 4, 50])
def test_few_samples_in_any_batches(name: str, n: int, rows: int) -> None:
    x = planted(n, 6, seed=n)
    # Single samples have squared lengths of 60: more than SLOW is meant for.
    options = {"unit": 4.0} if hasattr(RULES[name](4), "unit") else {}
    check(fit(RULES[name](4, **options), x, rows), min(4, n), 6)


@each
def test_more_components_than_attributes(name: str) -> None:
    x = planted(500, 4)
    found = fit(RULES[name](9), x)
    check(found, 4, 4)
    assert lost_variance(found["components"], x) < 1e-9


@each
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_no_variance(name: str, dtype: type) -> None:
    found = fit(RULES[name](2), np.full((250, 5), 7, dtype))
    check(found, 2, 5)
    assert found["total_variance"] == 0
    assert not found["explained_variance"].any()


@each
def test_constant_and_repeated_attributes_and_samples(name: str) -> None:
    x = np.repeat(planted(300, 3), 4, axis=0)
    x = np.hstack([x, x[:, :1], np.full((len(x), 2), 5.0)])[np.random.default_rng(0).permutation(len(x))]
    found = fit(RULES[name](5), x)
    check(found, 5, 6)
    assert found["explained_variance"].sum() == pytest.approx(found["total_variance"], rel=0.15)


@each
def test_empty_batches_count_for_nothing(name: str) -> None:
    rule = RULES[name](2)
    x = planted(200, 5)
    state = rule.init(5, x.dtype)
    for batch in (x[:0], x[:150], x[:0], x[150:], x[:0]):
        state = rule.update(state, batch)
    expected = rule.finish(rule.update(rule.update(rule.init(5, x.dtype), x[:150]), x[150:]))
    for key, value in rule.finish(state).items():
        np.testing.assert_array_equal(value, expected[key])
    with pytest.raises(ValueError, match="0 samples"):
        rule.finish(rule.update(rule.init(5, x.dtype), x[:0]))


@each
def test_the_seed_decides(name: str) -> None:
    x = planted(300)
    a, b, c = (fit(RULES[name](3, seed=s), x)["components"] for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@each
def test_without_centering(name: str) -> None:
    """The mean, 1 everywhere, is then a component like any other: the first."""
    x = planted() / 3 + 4
    found = fit(RULES[name](2, center=False, **({"unit": 8.0} if hasattr(RULES[name](2), "unit") else {})), x)
    assert not found["mean"].any()
    assert found["components"][0].sum() / np.sqrt(30) > 0.98
    assert found["total_variance"] == pytest.approx((x**2).sum() / (len(x) - 1))


@each
def test_bytes_are_planned(name: str) -> None:
    """State and result to the byte, temporary arrays by the memory traced."""
    import tracemalloc

    d, rows = 20_000, 64
    x = np.random.default_rng(0).normal(size=(rows, d)).astype(np.float32)
    rule: Any = RULES[name](8)
    state = rule.init(d, x.dtype)
    assert state.nbytes <= rule.state_bytes(d, x.dtype) <= 1.1 * state.nbytes
    linalg.release_scratch()
    tracemalloc.start()
    state = rule.update(state, x)
    found = rule.finish(state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= rule.work_bytes(rows, d, x.dtype) + rule.result_bytes(d, x.dtype)
    size = sum(a.nbytes for a in found.values())
    assert size <= rule.result_bytes(d, x.dtype) <= 1.1 * size


@each
def test_states_hold_arrays_and_integers_only(name: str) -> None:
    state = fold(RULES[name](2), planted(200, 5))
    assert all(type(a) is np.ndarray for a in state.arrays.values())
    assert all(type(c) is int for c in state.counts.values())


@pytest.mark.parametrize("options", [{"n_components": 0}, {"n_components": -2}])
def test_components_are_needed(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Oja(**options)


@pytest.mark.parametrize("unit", [0.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("kind", [Oja, OjaSubspace, Krasulina, Sanger, ImplicitKrasulina, AcceleratedOja])
def test_units_are_positive(kind: Any, unit: float) -> None:
    with pytest.raises(ValueError, match="unit is"):
        kind(2, unit=unit)
