from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.codec.goal import Goal, UnreachedError, search_step
from dpca.codec.quantize import quantize
from dpca.codec.rate import rows_at


@settings(deadline=None)
@given(hnp.arrays(np.int32, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.integers(-127, 127)))
def test_bits_are_the_entropy_of_each_row(codes: np.ndarray) -> None:
    for row, bits in zip(codes, rows_at(codes.astype(np.float32), 1.0).bits, strict=True):
        counts = np.unique(row, return_counts=True)[1]
        assert bits == pytest.approx(len(row) * scipy.stats.entropy(counts, base=2), abs=1e-9)


def test_power_and_saved_error_are_those_of_the_codes() -> None:
    scores = np.random.default_rng(0).normal(0, [[0.3], [2.0], [20.0]], (3, 200))
    found, values, codes = rows_at(scores, 0.7), scores / 0.7, quantize(scores.copy(), 0.7)
    np.testing.assert_allclose(found.power, (values**2).sum(axis=1))
    np.testing.assert_allclose(found.saved, (values**2 - (values - codes) ** 2).sum(axis=1))
    for row, bits in zip(codes, found.bits, strict=True):
        assert bits == pytest.approx(200 * scipy.stats.entropy(np.unique(row, return_counts=True)[1], base=2))


def test_codes_beyond_what_is_counted_cost_more() -> None:
    bits = rows_at(np.array([[0.0, 127] * 8, [0.0, 127 * 16] * 8]), 1.0).bits
    assert bits[1] == pytest.approx(bits[0] + 8 * 2 * 4)


def test_rows_are_kept_by_what_they_save() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, [[0.1], [0.15], [1], [10]], (4, 300)).astype(np.float32)
    free, dear = np.zeros(4), np.full(4, 1e9)
    measured = rows_at(scores, 1.0)
    assert measured.pays_off(1.0, free).tolist() == [False, False, True, True]
    assert not measured.pays_off(1.0, dear).any()
    # The share of the components pays once there are samples enough.
    assert measured.pays_off(1e7, dear).tolist() == [False, False, True, True]
    # Steps and scores of other units make no difference.
    assert rows_at(scores * 1e-20, 1e-20).pays_off(1.0, free).tolist() == [False, False, True, True]


@settings(deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(-10, 10))
def test_the_coarsest_and_the_finest_step_are_found(target: float, doublings: float) -> None:
    guess = target * 2**doublings
    coarse = search_step(lambda step: target - step, guess, coarse=True)
    assert target * 0.995 <= coarse <= target
    fine = search_step(lambda step: step - target, guess, coarse=False)
    assert target <= fine <= target * 1.005


def test_a_goal_that_no_step_meets_is_told() -> None:
    with pytest.raises(UnreachedError):
        search_step(lambda step: -1.0, 1.0, coarse=True)


@pytest.mark.parametrize(
    "given",
    [{}, {"psnr": 30.0, "mse": 1.0}, {"psnr": -1.0}, {"ssim": 1.0}, {"mse": np.nan}, {"ratio": True}, {"size": 3.0}],
)
def test_goals_that_make_no_sense(given: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Goal.of(**given)


@pytest.mark.parametrize(("given", "error"), [({"psnr": 30.0}, 1e-3), ({"mse": 1e-3}, 1e-3), ({"ssim": 0.9}, 0.1)])
def test_what_is_stored_as_float32_still_meets_the_goal(given: dict[str, float], error: float) -> None:
    assert error * (1 - 1e-4) < Goal.of(**given).allowed < error * (1 - 1e-7)
