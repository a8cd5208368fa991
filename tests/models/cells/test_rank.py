"""Ranks against exhaustive search, by hand, and on noise of a known level."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpca.models.cells import rank
from dpca.storage.errors import DataError

VARIANCES = np.array([[8.0, 1.0, 0.5], [4.0, 3.0, 2.0], [0.0, 0.0, 0.0]])
TOTALS = np.array([10.0, 9.0, 0.0])


def test_threshold_by_hand() -> None:
    """.8, .9, .95 of the first; 4/9, 7/9, 1 of the second; the third is constant."""
    for threshold, expected in {0.0: [1, 1, 0], 0.79: [1, 3, 0], 0.8: [2, 3, 0], 0.4: [1, 1, 0]}.items():
        np.testing.assert_array_equal(rank.ranks_by_threshold(VARIANCES, TOTALS, threshold), expected)
    np.testing.assert_array_equal(rank.ranks_by_threshold(VARIANCES, TOTALS, 0.94, 2), [2, 2, 0])
    np.testing.assert_array_equal(rank.ranks_by_threshold(VARIANCES, TOTALS, 0.97, 3), [3, 3, 0])


def test_threshold_that_the_known_components_do_not_reach() -> None:
    with pytest.raises(DataError, match="require"):
        rank.ranks_by_threshold(VARIANCES, TOTALS, 0.97)
    with pytest.raises(DataError, match="below"):
        rank.ranks_by_threshold(VARIANCES, TOTALS, 1.0)


spectra = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 4)), elements=st.integers(0, 5).map(float)
).map(lambda a: np.sort(a, axis=1)[:, ::-1])


@given(spectra, st.integers(0, 12))
@settings(deadline=None, derandomize=True)
def test_no_other_ranks_of_that_sum_explain_more(variances: np.ndarray, total: int) -> None:
    if total > np.count_nonzero(variances):
        with pytest.raises(DataError, match="total_components"):
            rank.spread(variances, total)
        return
    ranks = rank.spread(variances, total)
    assert ranks.sum() == total
    assert (ranks <= np.count_nonzero(variances, axis=1)).all()

    def explained(ks: tuple[int, ...] | np.ndarray) -> float:
        return sum(float(row[:k].sum()) for row, k in zip(variances, ks, strict=True))

    choices = itertools.product(range(variances.shape[1] + 1), repeat=len(variances))
    assert explained(ranks) == max(explained(ks) for ks in choices if sum(ks) == total)


@given(spectra, st.data())
@settings(deadline=None, derandomize=True)
def test_what_any_number_of_components_leaves(variances: np.ndarray, data: st.DataObject) -> None:
    """Energies of other samples need not fall as the variances do; components come in the order of `spread`."""
    energies = data.draw(hnp.arrays(np.float64, variances.shape, elements=st.integers(0, 5).map(float)))
    total = float(energies.sum()) + 1
    left = rank.left_by(variances, energies, total)
    assert len(left) == np.count_nonzero(variances) + 1
    for count, rest in enumerate(left):
        ranks = rank.spread(variances, count)
        kept = sum(row[:k].sum() for row, k in zip(energies, ranks, strict=True))
        assert rest == pytest.approx(total - kept)


def test_nothing_less_than_nothing_is_left() -> None:
    assert rank.left_by(np.ones((1, 2)), np.ones((1, 2)), 2 - 1e-15)[-1] == 0


def test_ratio_and_psnr_by_hand() -> None:
    assert rank.total_for_ratio(300, 15) == 20
    assert rank.total_for_ratio(301, 15) == 20
    assert rank.total_for_ratio(299, 15) == 20
    assert rank.total_for_ratio(292, 15) == 19
    assert rank.total_for_ratio(300, 300 / 51) == 51  # where the quotient is a rounding error below
    assert rank.total_for_ratio(300, 300) == 1
    assert rank.mse_of_psnr(20.0, 1.0) == pytest.approx(0.01)
    assert rank.mse_of_psnr(40.0, 255.0) == pytest.approx(6.5025)
    for ratio, words in {0.5: "at least 1", 301.0: "ratio is 301", float("nan"): "at least 1"}.items():
        with pytest.raises(DataError, match=words):
            rank.total_for_ratio(300, ratio)


@pytest.mark.parametrize(("n", "d"), [(2000, 60), (300, 200), (120, 400)])
@pytest.mark.parametrize("signals", [0, 3])
def test_signals_above_the_noise_are_counted(n: int, d: int, signals: int) -> None:
    """Tall, nearly square and wide samples; the signals are ten times the edge of the noise."""
    rng = np.random.default_rng(n + signals)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0][:, :3]
    edge = (1 + np.sqrt(d / n)) ** 2
    x = rng.normal(size=(n, d)) + (rng.normal(size=(n, signals)) * np.sqrt(10 * edge)) @ basis[:, :signals].T
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    found = rank.ranks_by_noise(np.maximum(values, 0)[None, : min(d, n - 1)], np.array([d]), n)
    # The largest eigenvalue of noise itself fluctuates about the edge.
    assert signals <= found[0] <= signals + 1


@pytest.mark.parametrize("n", [9, 100])
def test_samples_without_noise_keep_what_they_have(n: int) -> None:
    """The eigenvalues after the first two are zero, as those of noise of level zero."""
    variances = np.array([[4.0, 1.0, 0.0, 0.0], [7.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(rank.ranks_by_noise(variances, np.full(3, 4), n), [2, 1, 0])


def test_noise_needs_all_eigenvalues() -> None:
    with pytest.raises(DataError, match="noise"):
        rank.ranks_by_noise(VARIANCES, np.array([5, 5, 5]), 100)
    np.testing.assert_array_equal(rank.ranks_by_noise(np.zeros((2, 3)), np.array([3, 3]), 100), [0, 0])


@pytest.mark.parametrize(("d", "n"), [(20, 24), (12, 13), (30, 16)])
def test_the_noise_floor_is_its_definition(d: int, n: int) -> None:
    m, most = min(d, n - 1), max(d, n - 1)
    for row in np.sort(np.random.default_rng(0).gamma(0.7, size=(200, m)) + 0.1)[:, ::-1]:
        floors = [(row[p] - row[-1]) / (4 * np.sqrt((m - p) / (most - p))) for p in range(m)]
        expected = next(p for p in range(m) if row[p:].mean() >= floors[p])
        assert rank.ranks_by_noise(row[None], np.array([d]), n) == [expected]
