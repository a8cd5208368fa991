"""Tests of significance against what is known exactly: by hand, or of few samples in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.models.eof.significance import bootstrap, north_test, rule_n


def test_errors_of_eigenvalues_by_hand() -> None:
    """The root of 2 / 50 is 1/5."""
    found = north_test(np.array([10.0, 6.0, 5.0, 4.0, 3.0]), 50)
    np.testing.assert_allclose(found.error, [2, 1.2, 1, 0.8, 0.6])
    np.testing.assert_array_equal(found.n_eff, 50)
    # 4, 1, 1, 1 lie between them; what is exactly an error away is not apart.
    assert found.separated.tolist() == [True, False, False, True, True]
    assert north_test(np.array([5.0]), 50).separated.all()


def test_samples_that_depend_on_each_other_count_less() -> None:
    """A function that alternates, and one that takes every value twice in a row."""
    rng = np.random.default_rng(0)
    once = rng.normal(size=(2000, 1))
    twice = np.repeat(once, 2, axis=0)
    values = np.array([2.0])
    plain, doubled = north_test(values, 2000, once), north_test(values, 4000, twice)
    # r is 1, 1/2, 0, ...; r^2 of a variance sums to 1 + 2/4.
    np.testing.assert_allclose(doubled.n_eff, 4000 / 1.5, rtol=0.05)
    np.testing.assert_allclose(doubled.error, 2 * np.sqrt(2 / doubled.n_eff))
    np.testing.assert_allclose(plain.n_eff, 2000, rtol=0.05)


def test_noise_of_two_samples_has_one_mode() -> None:
    """The mean takes a degree of freedom, and the other holds everything."""
    found = rule_n(np.array([0.9, 0.1]), 2, 7, 20, 0.95, 0)
    np.testing.assert_allclose(found.threshold, [1, 0], atol=1e-12)
    assert found.significant.tolist() == [False, True]
    # What is exactly at the threshold is not above it.
    assert rule_n(np.array([1.0, 0.0]), 2, 7, 20, 0.95, 0).significant.tolist() == [False, False]


@pytest.mark.parametrize(("n_samples", "n_places", "m"), [(3, 9, 9), (10, 2, 9)])
def test_noise_with_two_modes_is_known_in_closed_form(n_samples: int, n_places: int, m: int) -> None:
    """Of a Wishart matrix of size 2, u = (l1 - l2) / (l1 + l2) exceeds x with the probability (1 - x^2)^((m - 1) / 2).

    See Mauchly 1940, equation 16: 1 - u^2 is his criterion.
    """
    found = rule_n(np.array([0.8, 0.2]), n_samples, n_places, 4000, 0.9, 0)
    u = np.sqrt(1 - 0.1 ** (2 / (m - 1)))
    assert found.threshold[0] == pytest.approx((1 + u) / 2, abs=0.006)
    u = np.sqrt(1 - 0.9 ** (2 / (m - 1)))  # the second share is large where u is small
    assert found.threshold[1] == pytest.approx((1 - u) / 2, abs=0.006)


@pytest.mark.parametrize("at", [0, 5])
def test_the_first_and_the_last_block_are_drawn_as_others(at: int) -> None:
    """Of six samples in blocks of 2, an end is in a block of three with probability 1/5.

    It is drawn never, once, twice with probability .512, .384, .096, which makes variances of 0, 1/6, 4/15.
    """
    pcs = np.zeros((6, 1))
    pcs[at] = 1
    for level, high in ((0.5, 1 / 6), (0.95, 4 / 15)):
        found = bootstrap(pcs, 2000, level, 2, 0)
        np.testing.assert_allclose([found.low[0], found.high[0]], [0, high], atol=1e-12)


def test_a_draw_has_as_many_samples_as_the_record() -> None:
    """Of five samples in two blocks of 3, the last one is in a draw with the first block alone: once in five."""
    pcs = np.zeros((5, 1))
    pcs[4] = 1
    found = bootstrap(pcs, 500, 0.9, 3, 0)
    np.testing.assert_allclose([found.low[0], found.high[0]], [0, 1 / 5], atol=1e-12)


def test_modes_of_like_variance_turn_between_draws() -> None:
    """Nothing is known of the angle between two modes of one variance, whose cosine is then 2 / pi on average."""
    pcs = np.linalg.qr(np.random.default_rng(0).normal(size=(500, 3)))[0] * [9, 1, 1]
    found = bootstrap(pcs - pcs.mean(axis=0), 500, 0.9, 1, 0)
    assert found.least_congruence[0] > 0.99
    np.testing.assert_allclose(found.congruence[1:], 2 / np.pi, atol=0.15)
    assert (found.least_congruence[1:] < 0.4).all()


def test_a_block_as_long_as_the_record_is_the_record() -> None:
    pcs = np.linalg.qr(np.random.default_rng(0).normal(size=(30, 3)))[0] * [3, 2, 1]
    pcs -= pcs.mean(axis=0)
    found, turn = np.linalg.eigh(np.cov(pcs, rowvar=False))
    drawn = bootstrap(pcs, 5, 0.9, 30, 0)
    for values in (drawn.low, drawn.high):
        np.testing.assert_allclose(values, found[::-1])
    for cosines in (drawn.congruence, drawn.least_congruence):
        np.testing.assert_allclose(cosines, np.abs(np.diagonal(turn[:, ::-1])))


def test_bounds_of_a_variance_are_those_of_its_sampling_error() -> None:
    """Of n independent normal samples, a variance has the standard error sqrt(2 / n)."""
    pcs = np.random.default_rng(0).normal(size=(2000, 1))
    found = bootstrap(pcs, 1000, 0.9, 1, 0)
    spread = 1.645 * np.sqrt(2 / 2000) * pcs.var()
    assert found.high[0] - pcs.var(ddof=1) == pytest.approx(spread, rel=0.15)
    assert pcs.var(ddof=1) - found.low[0] == pytest.approx(spread, rel=0.15)
    assert found.congruence == found.least_congruence == 1
