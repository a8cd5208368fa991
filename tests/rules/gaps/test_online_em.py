"""Expectation-maximization by batches, against loops over all samples with their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.kernels.gaps import LowRank
from dpca.rules.gaps.online import OnlineEM
from tests.helpers.traced import traced_peak

N, D, K = 90, 8, 3


def streams(seed: int = 0) -> tuple[Any, Any]:
    """Return batches of samples with gaps, and the model before them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((N, K)) * [3, 2, 1] @ rng.standard_normal((K, D)) + 0.4 * rng.standard_normal((N, D)) + 5
    x[rng.random(x.shape) < 0.3] = np.nan
    x[40:43] = np.nan
    x[10:20] = np.where(np.isnan(x[10:20]), 4.0, x[10:20])  # complete
    x[:60, 3] = np.nan  # its first values come late
    x[:, 7] = np.nan
    rows = np.linalg.qr(rng.standard_normal((D, K)))[0].T
    return np.split(x, [30, 41, 60]), LowRank(rows, np.array([9.0, 2.0, 1.0]), np.full(D, 5.0), 0.5)


def dense(batches: Any, model: LowRank) -> tuple[Any, Any, float, Any]:
    """Return mean, loadings, noise and second moments of scores after all batches.

    All samples are kept, with what was expected of their scores, and have weights that grow as their number^0.5 does.
    """
    loadings, mean, noise = model.components.T * np.sqrt(model.variances), model.mean.copy(), model.noise
    kept: list[list[Any]] = []
    seen = 0
    for batch in batches:
        used = [row for row in batch if not np.isnan(row).all()]
        seen += len(used)
        share = 1.5 * len(used) / (seen + 0.5 * len(used))
        total = sum(one[0] for one in kept)
        for one in kept:
            one[0] *= len(used) * (1 - share) / (share * total)
        for row in used:
            here = ~np.isnan(row)
            own = loadings[here]
            spread = np.linalg.inv(np.eye(K) + own.T @ own / noise)
            kept.append([1.0, row, spread @ own.T @ (row[here] - mean[here]) / noise, spread])
        ridge = noise / max(np.linalg.eigvalsh(loadings.T @ loadings))
        loadings, mean, noise = regression(kept, mean, ridge)
    weights = np.array([one[0] for one in kept])
    scores, spreads = np.array([one[2] for one in kept]), np.array([one[3] for one in kept])
    center = weights @ scores / weights.sum()
    second = np.einsum("n,nij->ij", weights, spreads + scores[:, :, None] * scores[:, None]) / weights.sum()
    return mean + loadings @ center, loadings, noise, second - np.outer(center, center)


def regression(kept: Any, mean: Any, ridge: float) -> tuple[Any, Any, float]:
    loadings, mean, squares, count = np.zeros((D, K)), mean.copy(), 0.0, 0.0
    for j in range(D):
        own = [(w, np.append(z, 1.0), np.pad(s, (0, 1)), row[j]) for w, row, z, s in kept if not np.isnan(row[j])]
        if not own:
            continue
        left = sum(w * (np.outer(z, z) + s) for w, z, s, _ in own) + np.diag([ridge] * K + [0.0])
        # The prior is on the loadings of deviations from any mean.
        solved = np.linalg.solve(left, sum(w * z * value for w, z, _, value in own))
        loadings[j], mean[j] = solved[:K], solved[K]
        squares += sum(w * ((value - z @ solved) ** 2 + solved @ s @ solved) for w, z, s, value in own)
        count += sum(w for w, *_ in own)
    return loadings, mean, squares / count


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_are_those_of_all_samples_with_weights(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, model = streams(seed)
    monkeypatch.setattr(OnlineEM, "_first_model", lambda *_: model)
    rule = OnlineEM(K)
    state = rule.init(D, float)
    for batch in batches:
        state = rule.update(state, batch)
    mean, loadings, noise, spread = dense(batches, model)
    found, n = rule.finish(state), sum(map(len, batches))
    share = n / (n - 1)
    covariance = found["components"].T * (found["explained_variance"] / share - noise) @ found["components"]
    np.testing.assert_allclose(covariance, loadings @ spread @ loadings.T, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found["mean"][:7], mean[:7], rtol=1e-8)
    assert np.isnan(found["mean"][7])
    assert not found["components"][:, 7].any()
    explained = found["explained_variance"].sum() + (7 - K) * noise * share
    assert found["total_variance"] == pytest.approx(explained, rel=1e-8)


def test_samples_without_values_count_but_change_nothing() -> None:
    (first, *_), _ = streams()
    rule, results = OnlineEM(K), []
    for stream in ([first], [np.full((4, D), np.nan), first, np.full((3, D), np.nan)]):
        state = rule.init(D, float)
        for batch in stream:
            state = rule.update(state, batch)
        assert state.counts["n_samples"] == sum(map(len, stream))
        results.append(rule.finish(state))
    np.testing.assert_array_equal(results[0]["components"], results[1]["components"])
    state = rule.update(rule.init(D, float), np.full((4, D), np.nan))
    with pytest.raises(ValueError, match="missing"):
        rule.finish(state)


@pytest.mark.parametrize(("n", "d", "k"), [(200, 4000, 3), (1000, 300, 12), (1024, 1100, 2), (2048, 700, 1)])
def test_bytes_are_planned(n: int, d: int, k: int) -> None:
    rng = np.random.default_rng(0)
    rule, x = OnlineEM(k), np.where(rng.random((n, d)) < 0.3, np.nan, rng.random((n, d)))
    planned = rule.work_bytes(n, d, float)
    for prepare in (lambda: rule.init(d, float), lambda: rule.update(rule.init(d, float), x)):  # the first, and others
        peak, state = traced_peak(prepare, lambda state: rule.update(state, x), planned)
        assert peak <= planned
    assert traced_peak(state.copy, rule.finish, planned)[0] <= planned + rule.result_bytes(d, float)
