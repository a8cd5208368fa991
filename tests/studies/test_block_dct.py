"""The block cosine transform against its definition and scipy's, cell by cell; moments against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.partition import CellGrid
from dpca.pipelines.studies.partitions.dct_moments import BlockDCTMoments, block_dct, cell_waves, low_frequencies
from dpca.rules.base.state import State


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    cell=st.integers(1, 5),
    channels=st.sampled_from([(), (3,)]),
    across=st.booleans(),
    wide=st.booleans(),
)
def test_every_cell_is_transformed_by_itself(
    shape: list[int], cell: int, channels: tuple[int, ...], across: bool, wide: bool
) -> None:
    rng = np.random.default_rng(0)
    dtype = np.float64 if wide else np.float32
    x = rng.normal(size=(2, *shape, *channels)).astype(dtype)
    cells = tuple(min(cell, length) for length in shape)
    found = block_dct(x, cells, across_channels=across)
    assert found.dtype == dtype
    grid = CellGrid(x.shape[1:], cells)
    axes = range(1, 1 + len(shape) + len(channels) * across)
    for i in range(grid.n_parts):
        where = (slice(None), *(slice(a, b) for a, b in grid.region(i)))
        np.testing.assert_allclose(found[where], scipy.fft.dctn(x[where], axes=axes, norm="ortho"), atol=1e-5)
        waves = cell_waves(found[where].shape[1 : 1 + len(shape)], channels, across_channels=across)
        np.testing.assert_allclose(waves @ waves.T, np.eye(len(waves)), atol=1e-12)
        np.testing.assert_allclose(found[where].reshape(2, -1), x[where].reshape(2, -1) @ waves.T, atol=1e-5)


def test_waves_are_cosines() -> None:
    """T 2.5.2: a(u) cos(pi (2 x + 1) u / 2 N), with a(0) = sqrt(1 / N) and sqrt(2 / N) otherwise."""
    waves = cell_waves((8,), (), across_channels=False)
    x, u = np.arange(8), np.arange(8)[:, None]
    by_hand = np.where(u == 0, np.sqrt(1 / 8), np.sqrt(2 / 8)) * np.cos(np.pi * (2 * x + 1) * u / 16)
    np.testing.assert_allclose(waves, by_hand, atol=1e-14)


def test_low_frequencies_come_first_channels_together() -> None:
    order = low_frequencies((3, 2), (3,))
    assert sorted(order) == list(range(18))
    places = [np.unravel_index(i, (3, 2, 3)) for i in order]
    assert [tuple(map(int, place)) for place in places[:6]] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
        (0, 1, 0),
        (0, 1, 1),
        (0, 1, 2),
    ]
    sums = [y + x for y, x, _ in places]
    assert sums == sorted(sums)
    np.testing.assert_array_equal(low_frequencies((4,), ()), [0, 1, 2, 3])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_moments_are_those_of_the_coefficients(dtype: type) -> None:
    x = np.random.default_rng(0).uniform(0, 255, (150, 7, 5, 3)).astype(dtype)
    rule = BlockDCTMoments((7, 5, 3), (3, 5), across_channels=True)
    states = []
    for part in (x[:100], x[100:]):
        state = rule.init(105, dtype)
        states.append(rule.update(state, part.reshape(len(part), -1)))
    found = rule.finish(rule.merge(*states))
    wanted = block_dct(x.astype(np.float64), (3, 5), across_channels=True).reshape(150, -1)
    np.testing.assert_allclose(found["mean"], wanted.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(found["variance"], wanted.var(axis=0, ddof=1), rtol=1e-5)
    # Orthonormal: nothing of the variance is lost.
    assert found["variance"].sum() == pytest.approx(x.reshape(150, -1).astype(float).var(axis=0, ddof=1).sum())


def test_no_sample_changes_nothing_and_one_has_no_variance() -> None:
    rule = BlockDCTMoments((4, 4), (2, 2))
    state = rule.update(rule.init(16, np.uint8), np.empty((0, 16), np.uint8))
    assert state.counts == {"n_samples": 0}
    with pytest.raises(ValueError, match=r"\b1.sample"):
        rule.finish(rule.update(state, np.ones((1, 16), np.uint8)))


def test_work_is_as_much_as_planned() -> None:
    import tracemalloc

    rule = BlockDCTMoments((64, 64, 3), (10, 10))
    batch = np.zeros((64, 64 * 64 * 3), np.uint8)
    state: State = rule.init(batch.shape[1], batch.dtype)
    tracemalloc.start()
    rule.update(state, batch)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= rule.work_bytes(64, batch.shape[1], np.uint8)
