"""The accelerated rules against algorithms 3.1 and 3.2, and their limits: no acceleration, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.schedules import Constant, FirstStrategy, Harmonic, Increasing, SecondStrategy
from dpca.rules.stochastic.accelerated import AcceleratedBlockPower, AcceleratedOja
from dpca.rules.stochastic.block_power import BlockPower
from dpca.rules.stochastic.oja import Oja
from tests.rules.streams import fit, fold, lost_variance, planted, same_span

SCHEDULES = [Harmonic(1.0), Constant(1.0), Increasing(), FirstStrategy(), SecondStrategy()]


def started(rule, rows):
    state = rule.init(len(rows[0]), np.dtype(float))
    state.arrays["components"][...] = rows
    return state


def normalize(columns: np.ndarray) -> np.ndarray:
    return columns / np.linalg.norm(columns, axis=0)


def gram_schmidt(columns: np.ndarray) -> np.ndarray:
    q, r = np.linalg.qr(columns)
    return q * np.sign(r.diagonal())


def test_one_step_by_hand() -> None:
    """w = (1, 0), C w along v = (0.6, 0.8): v + 2 w (w v) = (0.6 + 1.2, 0.8)."""
    rule = AcceleratedOja(1, acceleration=Constant(2.0))
    moved = rule._accelerate(np.array([[3.0, 4.0]]), np.array([[1.0, 0.0]]), 1)
    np.testing.assert_allclose(moved[0], np.array([1.8, 0.8]) / np.hypot(1.8, 0.8), rtol=1e-14)


@pytest.mark.parametrize("alpha", SCHEDULES, ids=lambda s: type(s).__name__)
def test_algorithm_3_1(alpha) -> None:
    """Line by line, samples in columns."""
    x = planted(400, 8)
    rule = AcceleratedBlockPower(3, alpha, center=False)
    state = rule.init(8, x.dtype)
    w = state.arrays["components"].T.copy()
    for t in range(1, 5):
        block = x[100 * (t - 1) : 100 * t].T
        state = rule.update(state, block.T)
        new = normalize(block @ block.T @ w)
        w = gram_schmidt(new + alpha(t) * w @ w.T @ new)
        np.testing.assert_allclose(state.arrays["components"], w.T, atol=1e-10)


@pytest.mark.parametrize("alpha", SCHEDULES, ids=lambda s: type(s).__name__)
def test_algorithm_3_2(alpha) -> None:
    x = planted(400, 8)
    rule = AcceleratedOja(3, Harmonic(7.0), alpha, center=False, unit=1.0)
    state = rule.init(8, x.dtype)
    w = state.arrays["components"].T.copy()
    for t in range(1, 5):
        block = x[100 * (t - 1) : 100 * t].T
        state = rule.update(state, block.T)
        new = normalize(w + 7.0 / t * block @ block.T @ w / 100)
        w = gram_schmidt(new + alpha(t) * w @ w.T @ new)
        np.testing.assert_allclose(state.arrays["components"], w.T, atol=1e-10)


@pytest.mark.parametrize("kind", [AcceleratedBlockPower, AcceleratedOja])
def test_equation_3_3_for_each_component(kind) -> None:
    x = planted(300, 8)
    literal = {"schedule": Harmonic(100.0), "unit": 1.0} if kind is AcceleratedOja else {}
    rule = kind(3, acceleration=Increasing(), per_component=True, center=False, **literal)
    state = rule.init(8, x.dtype)
    w = state.arrays["components"].T.copy()
    for t in range(1, 4):
        block = x[100 * (t - 1) : 100 * t].T
        state = rule.update(state, block.T)
        new = block @ block.T @ w
        new = normalize(new if kind is AcceleratedBlockPower else w + 100 / t * new / 100)
        w = gram_schmidt(np.column_stack([new[:, j] + t * w[:, j] * (w[:, j] @ new[:, j]) for j in range(3)]))
        np.testing.assert_allclose(state.arrays["components"], w.T, atol=1e-10)


def test_one_component_has_one_reading() -> None:
    x = planted(500)
    a, b = (fit(AcceleratedBlockPower(1, per_component=p), x)["components"] for p in (False, True))
    np.testing.assert_allclose(a, b, atol=1e-12)


def test_without_acceleration_they_are_the_plain_methods() -> None:
    x = planted(500)
    tiny = Constant(1e-12)
    a = fold(AcceleratedBlockPower(3, tiny), x).arrays["components"]
    np.testing.assert_allclose(a, fold(BlockPower(3), x).arrays["components"], atol=1e-9)
    a = fold(AcceleratedOja(3, Harmonic(2.0), tiny, unit=1.0), x).arrays["components"]
    np.testing.assert_allclose(a, fold(Oja(3, Harmonic(2.0), unit=1.0), x).arrays["components"], atol=1e-9)


def test_an_infinite_acceleration_stays() -> None:
    x = planted(100)
    rule = AcceleratedBlockPower(3, Constant(1e9))
    state = rule.init(30, x.dtype)
    start = state.arrays["components"].copy()
    assert same_span(rule.update(state, x).arrays["components"], start, 1e-6)


def test_the_schedules_by_hand() -> None:
    """With the draws taken back out: z = (t / alpha - 1) / c, and t times that for the second one."""
    assert [Increasing(2.0)(t) for t in (1, 3)] == [2.0, 6.0]
    times = np.arange(1, 400)
    first = np.array([(t / FirstStrategy(3.0)(t) - 1) / 3 for t in times])
    second = np.array([(t / SecondStrategy(50.0)(t) - 1) * t / 50 for t in times])
    for draws in (first, second):
        assert (draws.min() >= -1e-12) & (draws.max() <= 1)
        assert abs(draws.mean() - 0.5) < 0.05
        assert abs(draws.var() - 1 / 12) < 0.01
    assert FirstStrategy(seed=1)(5) != FirstStrategy(seed=2)(5)
    assert SecondStrategy(seed=1)(5) == SecondStrategy(seed=1)(5)


def test_acceleration_beats_the_plain_method() -> None:
    x = planted(20_000)
    lost = [lost_variance(fit(rule(3), x)["components"], x) for rule in (BlockPower, AcceleratedBlockPower)]
    assert lost[1] < lost[0] / 10
    assert lost_variance(fit(AcceleratedOja(3), x)["components"], x) < lost[0] / 10


@pytest.mark.parametrize("options", [{"momentum": 0.1}, {"orthonormalize_every": 2}])
def test_refused_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="orthonormalize_every.*momentum"):
        AcceleratedBlockPower(2, **options)


@pytest.mark.parametrize("kind", [Increasing, FirstStrategy, SecondStrategy])
def test_a_schedule_is_positive(kind) -> None:
    with pytest.raises(ValueError, match="positive"):
        kind(-1.0)
