from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.fft import dct

from dpca.codec.residual import best_axes, differences, sums
from dpca.codec.waves import RUN, from_waves, restored, stored, to_waves, waves_pay


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(1, 3 * RUN), st.sampled_from([np.float32, np.float64]))
def test_waves_are_cosines_of_runs_and_give_scores_back(n_rows: int, n: int, dtype: type) -> None:
    scores = np.random.default_rng(n).normal(size=(n_rows, n)).astype(dtype)
    waves = to_waves(scores)
    assert waves.dtype == dtype
    assert waves.shape == (n_rows, -(-n // RUN) * RUN)
    np.testing.assert_allclose(from_waves(stored(waves), dtype)[:, :n], scores, atol=1e-5)
    # A run that ends early continues its last sample.
    runs = np.pad(scores, ((0, 0), (0, waves.shape[1] - n)), "edge").reshape(n_rows, -(-n // RUN), RUN)
    np.testing.assert_allclose(waves.reshape(runs.shape), dct(runs, norm="ortho"), atol=1e-5)


def test_a_constant_is_one_wave_wherever_it_ends() -> None:
    """Of a ramp before it, a run that ends early keeps nothing."""
    scores = np.concatenate([np.arange(RUN), np.full(5, 3.0)])[None]
    assert (np.abs(to_waves(scores)[0, RUN + 1 :]) < 1e-12).all()
    assert to_waves(scores)[0, RUN] == pytest.approx(3 * RUN**0.5)


def test_codes_of_a_wave_are_stored_together() -> None:
    codes = np.arange(2 * 3 * RUN).reshape(2, 3 * RUN)
    kept = stored(codes)
    assert kept.shape == (2, RUN, 3)
    assert kept[1, 5].tolist() == codes[1, 5::RUN].tolist()
    assert (restored(kept) == codes).all()
    assert restored(stored(codes[:0])).shape == (0, 3 * RUN)


def test_waves_pay_where_samples_follow_each_other() -> None:
    walks = np.random.default_rng(0).normal(size=(50, 4 * RUN)).cumsum(axis=1)
    walks -= walks.mean(axis=1, keepdims=True)
    assert waves_pay(walks)
    assert not waves_pay(np.random.default_rng(0).permutation(walks.T).T)


@settings(deadline=None)
@given(hnp.arrays(np.int16, hnp.array_shapes(min_dims=3, max_dims=4, max_side=5)), st.sets(st.sampled_from([1, 2])))
def test_sums_of_differences_wrap_around(values: np.ndarray, axes: set[int]) -> None:
    kept = differences(values, sorted(axes))
    assert kept.dtype == np.int16
    assert (sums(kept, sorted(axes)) == values).all()


def test_differences_are_taken_where_neighbours_are_alike() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(-50, 50, (4, 30, 30))
    assert best_axes(noise, 2) == ()
    assert best_axes(noise.cumsum(axis=2), 2) == (2,)
    assert best_axes(noise.cumsum(axis=1).cumsum(axis=2), 2) == (1, 2)
