"""The contract of rules: the same tests for all rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.engine.folds.checkpoint import load_states, save_states
from dpca.kernels.algebra import linalg
from dpca.kernels.patches import PatchGrid
from dpca.models.streaming.streaming_methods import rule_class
from dpca.parameters.streaming import RULE_CLASSES
from dpca.rules import BlockPower, ExplicitKrasulina, ImplicitKrasulina, IncrementalSVD, Oja
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.rule import Wrapper
from dpca.rules.base.schedules import SCHEDULES
from dpca.rules.base.state import State
from dpca.rules.base.watched import Watched
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.covariance_product import CovarianceProduct, RayleighRitz, Refinement
from dpca.rules.covariance.extremes import Extremes
from dpca.rules.covariance.moments import Moments
from dpca.rules.covariance.patch_covariance import PatchCovariancePCA
from dpca.rules.covariance.pooled_covariance import PooledBlocks, PooledCovariancePCA
from dpca.rules.covariance.power_iteration import PowerIteration
from dpca.rules.covariance.snapshots import SnapshotPCA
from dpca.rules.covariance.spectral import SpectralSVD
from dpca.rules.covariance.vr_pca import VRPCA
from dpca.rules.dual.components import DualComponents
from dpca.rules.dual.gram import BlockGram
from dpca.rules.kernel.gains import gains_of
from dpca.rules.kernel.kha import KernelHebbian, begin
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.helpers.traced import traced_peak
from tests.rules.streams import fit, fold, lost_variance, planted

#: name -> k, options -> rule
STREAMING: dict[str, Callable[..., Any]] = {
    **{method: lambda k=3, method=method, **o: rule_class(method)(k, **o) for method in RULE_CLASSES},
    "oja-every-3": lambda k=3, **o: Oja(k, orthonormalize_every=3, **o),
    "explicit-krasulina": lambda k=3, **o: ExplicitKrasulina(k, **o),
    "implicit-krasulina-online": lambda k=3, **o: ImplicitKrasulina(k, online=True, **o),
    "block-power-momentum": lambda k=3, **o: BlockPower(k, momentum=0.001, **o),
}
# Their answer is that of one block.
LOSSY = {"block-power", "block-power-momentum"}
D, N = 30, 240
_rng = np.random.default_rng(0)
BASIS = np.linalg.qr(_rng.normal(size=(D, 4)))[0].T.copy()
#: name -> d, n -> rule, for n samples of d attributes
RULES: dict[str, Callable[[int, int], Any]] = {
    **{name: lambda d, n, make=make: make(3) for name, make in STREAMING.items()},
    "kernel-hebbian": lambda d, n: KernelHebbian(
        gains_of("smd*", 0.01, 100.0, 0.01),
        np.arange(n),
        begin(np.full((2, n), 0.01), rows(2, d)),
        np.ones(d),
        each_step=True,
    ),
    "in-batches": lambda d, n: InBatches(Watched(rule_class("incremental-svd")(3, 5), n), 50),
    "sampled": lambda d, n: InBatches(Sampled(Watched(IncrementalSVD(3, 5), n)), 50),
    "in-batches-sequential": lambda d, n: InBatches(Watched(Oja(3), n), 50),
    "covariance": lambda d, n: Covariance(),
    "covariance-pca": lambda d, n: CovariancePCA(3, n_least=2),
    "moments": lambda d, n: Moments(),
    "extremes": lambda d, n: Extremes(),
    "patch-covariance": lambda d, n: PatchCovariancePCA(PatchGrid((d // 3, 3), (2, 2), (1, 1)), 3),
    "pooled-blocks": lambda d, n: PooledBlocks((((2, d // 5), (3, d // 5)),)),
    "pooled-covariance": lambda d, n: PooledCovariancePCA(2, [(2, d // 5), (3, d // 5)]),
    "covariance-product": lambda d, n: CovarianceProduct(rows(3, d), np.full(d, 0.9)),
    "refinement": lambda d, n: Refinement(rows(3, d), np.full(d, 0.9)),
    "rayleigh-ritz": lambda d, n: RayleighRitz(rows(3, d), np.full(d, 0.9), n_components=2),
    "power-iteration": lambda d, n: PowerIteration(
        components=rows(1, d), mean=np.full(d, 0.9), found=rows(2, d)[1:], variances=np.ones(1)
    ),
    "spectral": lambda d, n: SpectralSVD(3, np.hanning(7)[1:-1], np.array([0, 2]), oversampling=4),
    "snapshots": lambda d, n: SnapshotPCA(n, 3),
    "block-gram": lambda d, n: BlockGram(n // 2),
    "dual-components": lambda d, n: DualComponents(
        np.random.default_rng(1).normal(size=(2, n)) / n, np.dtype(np.float64)
    ),
    "vr-pca": lambda d, n: VRPCA(rows(2, d), 9 * rows(2, d), np.ones(d), 1e-3),
}

each = pytest.mark.parametrize("name", RULES)
each_streaming = pytest.mark.parametrize("name", STREAMING)
each_dtype = pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])


def rows(k: int, d: int) -> np.ndarray:
    return np.eye(k, d)


def samples(dtype: Any, n: int = N, d: int = D) -> np.ndarray:
    x = planted(n, d)
    return (20 * x + 100).clip(0, 255).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-6) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key.endswith("_moved"):
            continue  # of the order in which samples came
        scale = max(1.0, float(np.abs(value).max())) if value.size else 1.0
        np.testing.assert_allclose(found[key], value, atol=tolerance * scale, err_msg=key)


def check_components(found: dict[str, np.ndarray], k: int, d: int) -> None:
    assert found["components"].shape == (k, d)
    assert found["explained_variance"].shape == (k,)
    assert found["mean"].shape == (d,)
    assert found["total_variance"].shape == ()
    for key in ("mean", "explained_variance", "total_variance"):
        assert found[key].dtype == np.float64
    assert all(np.isfinite(a).all() for a in found.values())
    components = found["components"].astype(float)
    assert np.abs(components @ components.T - np.eye(k)).max() < 3e-6
    assert (np.diff(found["explained_variance"]) <= 1e-9 * found["total_variance"]).all()
    assert (found["explained_variance"] >= 0).all()
    assert (components[np.arange(k), np.abs(components).argmax(1)] > 0).all()


@pytest.mark.pairwise
@each
@each_dtype
@pytest.mark.parametrize("size", [1, 37, N])
def test_batches_of_any_dtype_and_size_stay_as_they_are(name: str, dtype: Any, size: int) -> None:
    x = samples(dtype, 60 if size == 1 else N)
    before, rule = x.copy(), RULES[name](D, len(x))
    found = fit(rule, x, size)
    np.testing.assert_array_equal(x, before)
    assert all(np.isfinite(a).all() for key, a in found.items() if "moved" not in key)
    # Exact sums are integers.
    wide = [a.real.dtype for a in found.values() if a.real.dtype not in (np.float64, np.int64)]
    assert not wide or (np.dtype(dtype) != np.float64 and set(wide) == {np.dtype(np.float32)})


@each
def test_empty_batches_count_for_nothing(name: str) -> None:
    rule, x = RULES[name](D, N), samples(np.float32)
    state = rule.init(D, x.dtype)
    for batch in (x[:0], x[:150], x[:0], x[150:], x[:0]):
        state = rule.update(state, batch)
    expected = rule.finish(rule.update(rule.update(rule.init(D, x.dtype), x[:150]), x[150:]))
    for key, value in rule.finish(state).items():
        np.testing.assert_array_equal(value, expected[key])


@each
@each_dtype
def test_a_merge_is_of_all_that_both_have_seen(name: str, dtype: Any) -> None:
    """A merge with an empty state changes nothing, on either side: no part of a state is missing."""
    rule, x = RULES[name](D, N), samples(dtype)
    if not rule.mergeable:
        pytest.skip("it does not merge")
    a, b = fold(rule, x[:120], 40), fold(rule, x[120:], 40)
    alone = rule.finish(b.copy())
    tolerance = 1e-12 if np.dtype(dtype) == np.float64 else 2e-6
    assert_close(rule.finish(rule.merge(rule.init(D, x.dtype), b.copy())), alone, tolerance)
    assert_close(rule.finish(rule.merge(b.copy(), rule.init(D, x.dtype))), alone, tolerance)
    kept = b.copy()
    merged = rule.merge(a, b)
    for key, value in kept.arrays.items():
        np.testing.assert_array_equal(b.arrays[key], value)
    assert b.counts == kept.counts
    found, whole = rule.finish(merged), fit(rule, x, 40)
    for key in ("mean", "total_variance", "variance", "covariance"):
        if key in whole:
            np.testing.assert_allclose(found[key], whole[key], rtol=1e-5, atol=1e-6, err_msg=key)
    if "explained_variance" in whole:
        np.testing.assert_allclose(found["explained_variance"], whole["explained_variance"], rtol=1e-3)


@each
def test_a_merge_without_room_for_everything_keeps_its_certificate(name: str) -> None:
    """The merged state counts the discarded energy of both sides, for rules that discard some."""
    rule, x = RULES[name](D, N), np.random.default_rng(3).normal(size=(N, D))
    if not rule.mergeable:
        pytest.skip("it does not merge")
    b = fold(rule, x, 40)
    alone, merged = rule.finish(b.copy()), rule.finish(rule.merge(rule.init(D, x.dtype), b))
    if "captured_bound" in alone and name.startswith("in-batches"):
        assert alone["captured_bound"] < 0.9
    assert_close(merged, alone, 1e-10)


@each
def test_a_state_is_arrays_and_integers_and_goes_on_after_a_stop(name: str, tmp_path: Path) -> None:
    rule, x = RULES[name](D, N), samples(np.float32)
    state = fold(rule, x[:150], 50)
    assert all(type(a) is np.ndarray for a in state.arrays.values())
    assert all(type(c) is int for c in state.counts.values())
    kept = Checkpoints(str(tmp_path))
    save_states(kept, "one", [state])
    loaded = load_states(kept, "one")
    assert loaded is not None
    assert loaded[0].counts == state.counts
    found, expected = (rule.finish(rule.update(s, x[150:])) for s in (loaded[0], state))
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value)


@each
def test_bytes_are_planned(name: str) -> None:
    d, n = (300 if "covariance" in name and "product" not in name else 20_000), 64
    x = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    rule = RULES[name](d, n)
    merges = rule.mergeable and not isinstance(rule, Wrapper)

    def begin() -> list[State]:
        states = [rule.init(d, x.dtype), *([rule.update(rule.init(d, x.dtype), x)] if merges else [])]
        assert states[0].nbytes <= rule.state_bytes(d, x.dtype)
        linalg.release_scratch()
        return states

    def go_on(states: list[State]) -> dict[str, np.ndarray]:
        state = rule.update(states[0], x)
        assert state.nbytes <= rule.state_bytes(d, x.dtype)
        found: dict[str, np.ndarray] = rule.finish(rule.merge(state, states[1]) if merges else state)
        return found

    limit = rule.work_bytes(n, d, x.dtype) + rule.result_bytes(d, x.dtype) + 2**16
    peak, found = traced_peak(begin, go_on, limit)
    size = sum(a.nbytes for a in found.values())
    # Beside what grows with attributes and samples.
    assert size <= rule.result_bytes(d, x.dtype) + 2**10
    assert peak <= limit


@each
def test_what_a_rule_does_not_promise_it_refuses(name: str) -> None:
    rule = RULES[name](D, N)
    state = rule.init(D, np.float32)
    if not rule.averageable:
        with pytest.raises(NotImplementedError, match="averageable"):
            rule.average(state, [state, state])
    if not rule.summable:
        with pytest.raises(NotImplementedError, match="summable"):
            rule.partial_sums(state, samples(np.float32))
    needs = getattr(rule, "least_samples", 0)
    if needs:
        with pytest.raises(ValueError, match=rf"\b{needs}$"):
            rule.finish(state)


@each_streaming
def test_a_part_of_a_shared_state_is_the_rules_own(name: str) -> None:
    rule = STREAMING[name]()
    state = rule.init(D, np.float32)
    shared = State(state.arrays | {"other": np.ones(3)}, state.counts | {"n_other": 1})
    part = rule.part_of(shared)
    assert part.arrays.keys() == state.arrays.keys()
    assert part.counts == state.counts
    assert all(part.arrays[key] is state.arrays[key] for key in state.arrays)


@each_streaming
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16, np.float32, np.float64])
def test_it_finds_the_components_of_any_dtype(name: str, dtype: Any) -> None:
    x = samples(dtype, 4000)
    found = fit(STREAMING[name](3), x)
    check_components(found, 3, D)
    assert found["components"].dtype == (np.float64 if dtype is np.float64 else np.float32)
    exact = x.astype(float)
    assert lost_variance(found["components"], exact) < (0.05 if name in LOSSY else 0.015)
    truth = np.linalg.eigvalsh(np.cov(exact, rowvar=False))[::-1][:3]
    np.testing.assert_allclose(found["explained_variance"], truth, rtol=0.2)
    np.testing.assert_allclose(found["mean"], exact.mean(0), rtol=1e-5)
    assert found["total_variance"] == pytest.approx(exact.var(0, ddof=1).sum(), rel=1e-5)


@pytest.mark.pairwise
@each_streaming
@pytest.mark.parametrize("n", [1, 2, 3, 5, 23])
@pytest.mark.parametrize("size", [1, 4, 50])
def test_few_samples_in_any_batches(name: str, n: int, size: int) -> None:
    check_components(fit(STREAMING[name](4), planted(n, 6, seed=n), size), min(4, n), 6)


@each_streaming
def test_more_components_than_attributes(name: str) -> None:
    x = planted(500, 4)
    found = fit(STREAMING[name](9), x)
    check_components(found, 4, 4)
    assert lost_variance(found["components"], x) < 1e-9


@each_streaming
@each_dtype
def test_no_variance(name: str, dtype: Any) -> None:
    found = fit(STREAMING[name](2), np.full((250, 5), 7, dtype))
    check_components(found, 2, 5)
    assert found["total_variance"] == 0
    assert not found["explained_variance"].any()


@each_streaming
def test_constant_and_repeated_attributes_and_samples(name: str) -> None:
    x = np.repeat(planted(300, 3), 4, axis=0)
    x = np.hstack([x, x[:, :1], np.full((len(x), 2), 5.0)])[np.random.default_rng(0).permutation(len(x))]
    found = fit(STREAMING[name](5), x)
    check_components(found, 5, 6)
    assert found["explained_variance"].sum() == pytest.approx(found["total_variance"], rel=0.15)


@each_streaming
def test_without_centering(name: str) -> None:
    """The mean, 1 everywhere, is then a component like any other: the first."""
    x = planted() / 3 + 4
    found = fit(STREAMING[name](2, center=False), x)
    assert not found["mean"].any()
    assert abs(found["components"][0].sum()) / np.sqrt(30) > 0.98
    assert found["total_variance"] == pytest.approx((x**2).sum() / (len(x) - 1))


@each_streaming
def test_the_seed_decides(name: str) -> None:
    if "seed" not in {field.name for field in fields(STREAMING[name]())}:
        pytest.skip("nothing is drawn")
    a, b, c = (fit(STREAMING[name](3, seed=s), planted(300))["components"] for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@each_streaming
def test_a_rule_is_its_options(name: str) -> None:
    rule = STREAMING[name](2)
    names = {**SCHEDULES, type(rule).__name__: type(rule)}
    assert eval(repr(rule), names) == rule
    assert replace(rule) == rule
    assert replace(rule, n_components=4) != rule
    assert hash(rule) == hash(replace(rule))


@each_streaming
def test_components_are_filled_in_or_given(name: str) -> None:
    rule = STREAMING[name](None)
    with pytest.raises(ValueError, match="n_components.*None"):
        rule.init(5, np.float32)
    assert replace(rule, n_components=2) == STREAMING[name](2)


@each_streaming
@pytest.mark.parametrize("k", [0, -2, 1.5, "3"])
def test_components_are_whole_and_positive(name: str, k: Any) -> None:
    with pytest.raises(ValueError, match=f"n_components.*{k!r}"):
        STREAMING[name](k)


#: What options may not be; a rule is asked for those that it has.
WRONG = {
    "center": [3, "yes"],
    "online": [3, None],
    "seed": [-1, 0.5],
    "schedule": [0.1, abs],
    "acceleration": [0.1, None],
    "gains": [0.1, "et*"],
    "unit": [0.0, -1.0, np.inf, np.nan, "measured", True],
    "orthonormalize_every": [0, 1.5],
    "per_component": [1],
    "growth": [0.5, np.nan, "2"],
    "momentum": [-0.1, np.inf],
    "amnesic": [-1.0, np.nan],
    "tau": [0.0, np.inf],
    "neural_steps": [0, 2.5],
    "oversampling": [-1, 0.5],
    "forgetting": [0.0, 1.1],
    "wide": [1, None],
}


@pytest.mark.parametrize("method", RULE_CLASSES)
def test_options_are_checked(method: str) -> None:
    kind = rule_class(method)
    known = {field.name for field in fields(kind)} - {"n_components"}
    missing = known - WRONG.keys()
    assert not missing, f"add invalid values of {sorted(missing)} to WRONG in {__file__}"
    for option in known:
        for value in WRONG[option]:
            with pytest.raises(ValueError, match=rf"^{option}\b"):
                kind(2, **{option: value})
