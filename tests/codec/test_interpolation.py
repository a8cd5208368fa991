from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpca.codec.interpolation import FINER, Interpolation, folded, parities, unfolded

SHAPES = st.sampled_from([(1, 1), (2, 7), (5, 1, 4), (9, 6, 5), (3, 4, 5, 6), (40,)])


@given(st.data(), SHAPES, st.sampled_from(FINER), st.floats(1e-3, 10))
@settings(max_examples=40, deadline=None)
def test_errors_stay_within_half_a_step(data: st.DataObject, shape: tuple[int, ...], finer: float, step: float) -> None:
    values = data.draw(arrays(np.float64, shape, elements=st.floats(-1e4, 1e4)))
    axes = sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1)))
    found = Interpolation.fitted(values, axes, step, finer)
    codes, decoded = found.encode(values)
    assert np.abs(decoded - values).max() <= step / 2 * (1 + 1e-9)
    np.testing.assert_array_equal(found.decode(codes), decoded)
    np.testing.assert_array_equal(unfolded(folded(codes)), codes)


def test_a_line_by_hand() -> None:
    values = np.array([0.0, 3.0, 4.0, 7.0, 8.0])
    found = Interpolation((0,), (1.0, 1.0, 1.0), np.full((2, 1, 1, 2), (2**19, 0)))
    # 0 and 8 are stored, 4 lies between them, 2 and 6 are predicted instead of 3 and 7.
    codes, decoded = found.encode(values)
    assert codes.tolist() == [0, 1, 0, 1, 8]
    assert decoded.tolist() == values.tolist()


def decoded_one_by_one(found: Interpolation, codes: np.ndarray) -> np.ndarray:
    """Decode value by value, as `dpca.codec.interpolation` defines it."""
    n_levels, values, shape = len(found.steps) - 1, np.zeros(codes.shape), codes.shape
    for at in np.ndindex(*shape):
        if all(at[axis] % 2**n_levels == 0 for axis in found.axes):
            values[at] = codes[at] * found.steps[-1]
    for level in reversed(range(n_levels)):
        half = 2**level
        for number, odd in enumerate(parities(len(found.axes))):
            for at in np.ndindex(*shape):
                if any(at[a] % (2 * half) != half * is_odd for a, is_odd in zip(found.axes, odd, strict=True)):
                    continue
                total = 0.0
                for row, axis in enumerate(found.axes):
                    if odd[row]:
                        known = range(0, shape[axis], 2 * half)
                        near = [at[axis] - half, at[axis] + half if at[axis] + half in known else at[axis] - half]
                        far = [at[axis] - 3 * half, at[axis] + 3 * half]
                        far = far if all(place in known for place in far) else near
                        line = values[(*at[:axis], slice(None), *at[axis + 1 :])]
                        weights = found.weights[level, number, row] / 2**20
                        total += weights[0] * line[near].sum() + weights[1] * line[far].sum()
                values[at] = total + codes[at] * found.steps[level]
    return values


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 13), (1,)), ((3, 9, 11), (1, 2)), ((5, 6, 7), (0, 1, 2)), ((4, 3, 8), (0, 2)), ((2, 1, 20), (1, 2))],
)
def test_values_are_predicted_from_their_neighbors(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).normal(size=shape).cumsum(axis=-1)
    found = Interpolation.fitted(values, axes, 0.1, 1.5)
    codes, decoded = found.encode(values)
    np.testing.assert_allclose(decoded_one_by_one(found, codes), decoded, rtol=1e-12, atol=1e-12)


def test_weights_are_those_that_values_were_made_with() -> None:
    known = np.random.default_rng(0).normal(size=(4, 65))
    values, near = np.empty((4, 129)), known[:, :-1] + known[:, 1:]
    after = near.copy()
    after[:, 1:-1] = known[:, :-3] + known[:, 3:]
    values[:, ::2], values[:, 1::2] = known, 0.6 * near - 0.1 * after
    found = Interpolation.fitted(values, (1,), 1e-6, 1.0)
    np.testing.assert_allclose(found.weights[0, 0, 0] / 2**20, (0.6, -0.1), atol=1e-5)


def test_smooth_values_leave_little() -> None:
    t, y, x = np.meshgrid(np.arange(21), np.arange(31), np.arange(33), indexing="ij")
    values = np.sin(t / 6 + y / 5) * np.cos(x / 7)
    codes = Interpolation.fitted(values, (0, 1, 2), 0.02, 1.0).encode(values)[0]
    fine = codes.copy()
    fine[::2, ::2, ::2] = 0
    assert (fine != 0).mean() < 0.02


def test_parities_come_in_the_order_of_predictions() -> None:
    assert parities(2) == [(0, 1), (1, 0), (1, 1)]


def test_what_does_not_fit_is_refused() -> None:
    found = Interpolation((0,), (1e-9, 1e-9), np.zeros((1, 1, 1, 2), np.int32))
    with pytest.raises(OverflowError, match="bits"):
        found.encode(np.array([0.0, 1e3, 0.0]))
    assert folded(np.array([0, -1, 1, -(2**30)], np.int32)).tolist() == [0, 1, 2, 2**31 - 1]
