"""The Nyström step against its definition in full matrices, and its bounds on the discarded part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.covariance_product import RayleighRitz
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.rules.incremental.nystrom import absorb
from dpca.rules.incremental.rows import FloatRows
from tests.rules.streams import fit, optimum


def settled(d: int, q: int, n: int, seed: int, weight: float = 50.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a basis (q, d), its energies, which are those of ``weight`` batches, and a batch (n, d) like them."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    deviations = 0.85 ** np.arange(d)
    batch = (rng.normal(size=(n, d)) * deviations) @ turn.T
    near_by = turn[:, :q] + 0.02 * rng.normal(size=(d, q))
    return np.linalg.qr(near_by)[0].T.copy(), weight * n * deviations[:q] ** 2, batch


def rows_of(batch: np.ndarray, near: np.ndarray, weights: np.ndarray, pull: float) -> np.ndarray:
    """The rows X as the step defines them."""
    apart = batch - near
    return np.sqrt(weights)[:, None] * (apart - pull * (weights @ apart) / weights.sum())


@given(st.integers(1, 12), st.integers(0, 20), st.integers(1, 450), st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_the_step_is_its_definition(q: int, further: int, n: int, seed: int) -> None:
    d, k = q + further, (q + 1) // 2
    basis, energy, batch = settled(d, q, n, seed)
    rng = np.random.default_rng(seed)
    near, weights, pull = 0.1 * rng.normal(size=d), 0.5 + rng.random(n), 0.3
    before = weights.sum() * 0.49 / 0.51  # 1 - sqrt(0.49) is the pull
    x = rows_of(batch, near, weights, pull)
    whole = (basis.T * energy) @ basis + x.T @ x
    image = basis @ whole
    kept = image.T @ np.linalg.solve(image @ basis.T, image)
    left = np.linalg.eigvalsh(whole - kept)[::-1]
    assert left[-1] >= -1e-10 * left.sum() - 1e-9  # positive semi-definite

    given_basis, given_batch = basis.copy(), batch.copy()
    rows = FloatRows(batch, near, weights, before, float)
    step = absorb(basis, energy, rows, k)
    np.testing.assert_array_equal(batch, given_batch)
    if step is None:
        np.testing.assert_array_equal(basis, given_basis)
        return
    m = len(step.energy)
    np.testing.assert_allclose((basis[:m].T * step.energy) @ basis[:m], kept, atol=1e-9 * energy[0])
    np.testing.assert_allclose(basis[:m] @ basis[:m].T, np.eye(m), atol=1e-9)
    np.testing.assert_allclose(step.added, (x**2).sum())
    mean = near.copy()
    rows.add_mean(np.zeros(3), mean)
    np.testing.assert_allclose(mean, (before * near + weights @ batch) / (before + weights.sum()), atol=1e-12)
    assert step.discarded >= left[:k].sum() - 1e-9 * energy[0]


def test_batches_like_those_before_are_taken() -> None:
    for seed in range(5):
        basis, energy, batch = settled(100, 12, 450, seed)
        assert absorb(basis, energy, FloatRows(batch, None, np.ones(450), 0.0, float), 5) is not None


@pytest.mark.parametrize("share", [1.0, 0.02])
def test_a_new_direction_is_not_left_out(share: float) -> None:
    """All samples of a batch, or some, along an attribute that no direction of the basis has."""
    basis, energy, batch = settled(60, 10, 500, 0)
    basis[:, -1] = 0
    basis = np.linalg.qr(basis.T)[0].T.copy()
    strength = np.sqrt(2 * energy[4] / (500 * share))
    batch[:, -1] = np.where(np.arange(500) < 500 * share, strength, 0)
    before = basis.copy()
    assert absorb(basis, energy, FloatRows(batch, None, np.ones(500), 0.0, float), 5) is None
    np.testing.assert_array_equal(basis, before)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200, 0.0])
def test_what_cannot_be_squared_is_left_to_the_exact_step(value: float) -> None:
    basis, energy, batch = settled(30, 5, 50, 0)
    before = basis.copy()
    with np.errstate(all="ignore"):
        assert absorb(basis, energy, FloatRows(np.full_like(batch, value), None, np.ones(50), 0.0, float), 3) is None
    np.testing.assert_array_equal(basis, before)


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_what_is_stated_of_a_result_is_never_more_than_the_truth(data: st.DataObject) -> None:
    """Any spectrum, order, batches and tree of merges; two parts of a stream that may have nothing in common."""
    d, seed = data.draw(st.integers(3, 30), label="d"), data.draw(st.integers(0, 999), label="seed")
    k = data.draw(st.integers(1, 4), label="k")
    rule = IncrementalSVD(k, oversampling=data.draw(st.integers(0, 5), label="oversampling"), wide=True)
    rng, parts = np.random.default_rng(seed), []
    for _ in range(data.draw(st.integers(1, 4), label="parts")):
        decay = data.draw(st.floats(0.3, 1.0), label="decay")
        n = data.draw(st.integers(1, 120), label="n")
        x = rng.normal(size=(n, d)) * decay ** rng.permutation(d) * data.draw(st.sampled_from([0.1, 1, 10]))
        parts.append(x[np.argsort(x[:, 0])] if data.draw(st.booleans(), label="sorted") else x)
    states = []
    for x in parts:
        rows = data.draw(st.sampled_from([1, 7, 40, 120]), label="rows")
        state = rule.init(d, x.dtype)
        for start in range(0, len(x), rows):
            rule.update(state, x[start : start + rows])
        states.append(state)
    while len(states) > 1:
        i = data.draw(st.integers(0, len(states) - 2), label="merge")
        known = {name: sum(float(s.arrays[name]) for s in states[i : i + 2]) for name in ("discarded", "outside")}
        states[i : i + 2] = [rule.merge(*states[i : i + 2])]
        for name, least in known.items():
            assert states[i].arrays[name] >= least
    whole = np.concatenate(parts)
    if len(whole) < 2:
        return
    found, covariance = rule.finish(states[0]), np.cov(whole, rowvar=False).reshape(d, d)
    best = np.linalg.eigvalsh(covariance)[::-1][:k].sum()
    captured = np.trace(found["components"] @ covariance @ found["components"].T)
    room = 1e-9 * np.trace(covariance)
    assert found["explained_variance"].sum() <= captured + room
    assert found["captured_bound"] * best <= captured + room
    apart = np.eye(d) - found["directions"].T @ found["directions"]
    assert np.linalg.eigvalsh(apart @ covariance @ apart)[-1] <= found["outside"] + room
    k = min(k, len(found["directions"]))
    second = fit(
        RayleighRitz(found["directions"], found["mean"], n_components=k, outside=float(found["outside"])), whole, 50
    )
    assert np.linalg.eigvalsh(covariance)[::-1][:k].sum() <= optimum(second, k) + room


def test_few_and_many_samples_at_a_time_find_the_same() -> None:
    """Small batches are stacked exactly, large ones of a settled stream are not: both come near the exact answer."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8_000, 80)) * 0.9 ** np.arange(80) + np.linspace(0, 3, 80)
    covariance = np.cov(x, rowvar=False)
    best = np.linalg.eigvalsh(covariance)[::-1][:5].sum()
    for rows in (50, 1_000):
        rule = IncrementalSVD(5, oversampling=20)
        state = rule.init(80, x.dtype)
        for start in range(0, len(x), rows):
            rule.update(state, x[start : start + rows])
        found = rule.finish(state)
        lost = 1 - np.trace(found["components"] @ covariance @ found["components"].T) / best
        assert lost < 1e-5
        assert found["captured_bound"] <= 1 - lost
        np.testing.assert_allclose(found["mean"], x.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(found["total_variance"], np.trace(covariance))
