"""Sums over the values that are there: against dense formulas, in any order, and merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca import CellPCA
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import ArraySource
from dpca.kernels import gaps
from dpca.kernels.gaps import LowRank
from dpca.partition.whole import Whole
from dpca.rules.gaps import expectation
from dpca.rules.gaps.expectation import GapEM
from dpca.rules.gaps.present import PresentMoments
from dpca.storage.run import Run

N, D, K = 60, 9, 2


@pytest.fixture
def gappy() -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N, K)) @ rng.standard_normal((K, D)) + 0.3 * rng.standard_normal((N, D)) + 5
    x[rng.random(x.shape) < 0.3] = np.nan
    x[4:6] = np.nan
    x[10:20] = np.where(np.isnan(x[10:20]), 4.0, x[10:20])  # complete
    x[:, 7] = np.nan
    return x


def model_for(x: Any) -> LowRank:
    rows = np.linalg.qr(np.random.default_rng(1).standard_normal((x.shape[1], K)))[0].T
    return LowRank(rows, np.array([2.0, 0.7]), np.full(x.shape[1], 4.5), 0.4)


def done(rule: Any, *streams: Any) -> dict[str, Any]:
    """Return the result of one rule for streams that are merged."""
    start = rule.of_part(0)
    states = [start.init(x.shape[1], x.dtype) for x in streams]
    states = [rule.update(state, x) for state, x in zip(states, streams, strict=True)]
    first, *others = states
    for other in others:
        first = rule.merge(first, other)
    return rule.finish(first)


def dense_step(x: Any, model: LowRank) -> tuple[Any, Any, float]:
    """Return mean, covariance and noise after a step, with loops and the covariance of the observed values."""
    k, d = model.components.shape
    w = model.components.T * np.sqrt(model.variances)
    z, s, used = [], [], []
    for row in x:
        o = ~np.isnan(row)
        if not o.any():
            continue
        gain = w[o].T @ np.linalg.inv(w[o] @ w[o].T + model.noise * np.eye(o.sum()))
        z.append(gain @ (row[o] - model.mean[o]))
        s.append(np.eye(k) - gain @ w[o])
        used.append(row)
    mean, loadings, total, count = model.mean.copy(), np.zeros((d, k)), 0.0, 0
    for j in range(d):
        left, right, values = np.zeros((k + 1, k + 1)), np.zeros(k + 1), []
        for row, score, spread in zip(used, z, s, strict=True):
            if not np.isnan(row[j]):
                one = np.append(score, 1.0)
                left += np.outer(one, one)
                left[:k, :k] += spread
                right += one * (row[j] - model.mean[j])
                values.append((row[j] - model.mean[j], one, spread))
        if not values:
            continue
        left[:k, :k] += np.diag(model.noise / model.variances)
        solved = np.linalg.solve(left, right)
        loadings[j], mean[j] = solved[:k], mean[j] + solved[k]
        total += sum((v - one @ solved) ** 2 + solved[:k] @ spread @ solved[:k] for v, one, spread in values)
        count += len(values)
    spread = np.cov(np.array(z).T, bias=True) + np.mean(s, axis=0)
    return mean + loadings @ np.mean(z, axis=0), loadings @ spread @ loadings.T, total / count


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("k", [K, gaps._LAPACK_TO + 1])
def test_a_step_is_that_of_dense_formulas(gappy: Any, complete: bool, k: int) -> None:
    if complete:  # some of the samples
        gappy[10:20, 7] = gappy[10:20, 6] ** 2
        assert not np.isnan(gappy[10:20]).any()
    x = np.concatenate([gappy, gappy[::-1] ** 2 / 10], axis=1)[:, : max(D, 2 * k)]
    rows = np.linalg.qr(np.random.default_rng(1).standard_normal((x.shape[1], k)))[0].T
    model = LowRank(rows, np.linspace(2, 0.7, k), np.full(x.shape[1], 4.5), 0.4)
    found = done(GapEM(k, [model]), x)
    mean, covariance, noise = dense_step(x, model)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-10)
    rows = found["components"]
    np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-12)
    np.testing.assert_allclose((rows.T * found["variances"]) @ rows, covariance, atol=1e-10)
    assert found["noise"] == pytest.approx(noise, rel=1e-10)
    assert not found["tested"]


def likelihood(x: Any, model: dict[str, Any]) -> float:
    covariance = (model["components"].T * model["variances"]) @ model["components"] + model["noise"] * np.eye(D)
    total = 0.0
    for row in x:
        o = ~np.isnan(row)
        off, own = row[o] - model["mean"][o], covariance[np.ix_(o, o)]
        total -= 0.5 * (off @ np.linalg.solve(own, off) + np.linalg.slogdet(own)[1]) if o.any() else 0
    return total


def test_the_likelihood_grows_to_a_maximum(gappy: Any) -> None:
    model, values = model_for(gappy), []
    for _ in range(60):
        found = done(GapEM(K, [model]), gappy)
        values.append(likelihood(gappy, found))
        model = LowRank(found["components"], found["variances"], found["mean"], float(found["noise"]))
    assert (np.diff(values[:15]) > 0).all()
    assert abs(values[-1] - values[-2]) < 1e-3
    for name, change in (("noise", 0.7), ("noise", 1.4), ("variances", 0.6), ("variances", 1.6), ("mean", 1.05)):
        assert likelihood(gappy, {**found, name: found[name] * change}) < values[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_order_and_division_of_samples_do_not_matter(gappy: Any, dtype: Any) -> None:
    missing = 0 if dtype is np.uint8 else None
    x = np.where(np.isnan(gappy), 0, gappy * 10 + 100).astype(dtype) if missing == 0 else gappy.astype(dtype)
    rule = GapEM(K, [model_for(gappy)], missing, 0.2, 3)
    whole = done(rule, x)
    assert whole["tested"] > 30
    order = np.random.default_rng(2).permutation(N)
    parts = done(rule, x[order[:7]], x[order[7:7]], x[order[7:]])
    assert parts["tested"] == whole["tested"]
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=1e-4 if dtype != np.float64 else 1e-10, atol=1e-5)


def test_folds_divide_samples(gappy: Any) -> None:
    source = ArraySource(np.tile(gappy, (40, 1)), with_gaps=True)
    rule = GapEM(K, [model_for(gappy)], None, 0.1, 3)
    (one,), report = fold(rule, source, Whole((D,)), run=Run(threads=2))
    assert report.plan.task_bytes > 0
    for name, values in done(rule, np.tile(gappy, (40, 1))).items():
        np.testing.assert_allclose(one[name], values, rtol=1e-10)


def test_held_out_values_are_spread_and_there() -> None:
    rng = np.random.default_rng(0)
    x, here = rng.standard_normal((4000, 60)).astype(np.float32), rng.random((4000, 60)) < 0.7

    def held_out(x: Any, here: Any, share: float, seed: int) -> Any:
        held = np.zeros(here.shape, bool)
        entries = expectation.held_out(x, here, share, seed)
        held[entries] = True
        assert held.sum() == len(entries[0])  # each once
        return held

    held = held_out(x, here, 0.02, 5)
    assert not (held & ~here).any()
    assert held.sum() / here.sum() == pytest.approx(1 / 60, rel=0.1)  # one of 60 values of each sample
    assert held.sum(axis=0).min() > 0.5 * held.sum(axis=0).mean()
    np.testing.assert_array_equal(held[::-1], held_out(x[::-1], here[::-1], 0.02, 5))
    assert (held_out(x, here, 0.02, 6) != held).any()
    assert not held_out(x, here, 0.0, 5).any()
    few = held_out(x[:, :9].copy(), here[:, :9], 0.02, 5)
    assert few.sum() / here[:, :9].sum() == pytest.approx(0.02, rel=0.2)
    alone = np.zeros((500, 3), bool)
    alone[:, 1] = True
    assert not held_out(x[:500, :3].copy(), alone, 0.3, 5).any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_moments_are_those_of_numpy(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(1, 200, (300, 6)) + np.arange(6)
    masked = np.ma.array(x, mask=rng.random(x.shape) < 0.4)
    masked[:, 2] = np.ma.masked
    integers = np.dtype(dtype).kind != "f"
    given = masked.astype(dtype).filled(0 if integers else np.nan)
    rule = PresentMoments(0 if integers else None)
    found = done(rule, given[:90], given[90:90], given[90:])
    np.testing.assert_array_equal(found["count"], masked.count(axis=0))
    np.testing.assert_allclose(found["mean"], masked.mean(axis=0).filled(0), rtol=1e-12)
    np.testing.assert_allclose(found["variance"], masked.var(axis=0).filled(0), rtol=1e-12)
    assert not found["complete"]
    assert done(PresentMoments(), x)["complete"]


def test_infinities_are_rejected(gappy: Any) -> None:
    gappy[3, 3] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        done(PresentMoments(), gappy)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_part_of_one_attribute(dtype: str) -> None:
    """It has no noise beside its component, and gaps are its mean."""
    x = np.rint(np.random.default_rng(0).normal(size=(30, 4, 4)) * 100).astype(dtype)
    x[::5, 3, 3] = np.nan
    model = CellPCA(1, cell_shape=3, gaps="iterate", random_state=0).fit(x)
    np.testing.assert_allclose(model.mean_[-1, -1], np.nanmean(x[:, 3, 3]), rtol=1e-3)
    assert np.isfinite(model.transform(x)).all()
