"""What a choice asks for, by hand, on spectra that are written out."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from dpca.models.cells.rank import UnmetError
from dpca.models.cells.rank_choice import CapturedVariance, EigenvalueSpectrum, RankChoice, RankWarning
from dpca.storage.errors import DataError

VARIANCES = np.array([[8.0, 1.0], [4.0, 3.0]])
KNOWN = EigenvalueSpectrum(VARIANCES, np.array([10.0, 9.0]), np.array([5, 5]), 11)


def choice(**asked: Any) -> RankChoice:
    return RankChoice.of(asked)


def test_how_many_components_are_computed() -> None:
    """For 20 partitions of at most 48 attributes: four times the mean rank, a third where it is not known."""
    for asked, expected in (
        ({"ratio": 10}, 20),  # 100 of 1,000 attributes: 5 each
        ({"total_components": 30}, 6),
        ({"threshold": 0.9}, 16),
        ({"target_mse": 0.1}, 16),
        ({"target_mse": 0.1, "max_components": 40}, 40),
        ({"target_mse": 0.1, "max_components": 60}, 48),
        ({"n_components": 7}, 7),
        ({}, None),
    ):
        assert choice(**asked).to_compute((1000,), 20, 48, 200) == expected
    assert choice(threshold=0.9).to_compute((1000,), 20, 48, None) == 16
    assert choice(threshold=0.9).to_compute((1000,), 20, 48, 9) == 9  # as many as there are samples
    assert choice(threshold=0.9).to_compute((1000,), 20, 2, 9) == 1


def test_a_search_goes_on_with_twice_as_many() -> None:
    unmet = UnmetError("", computed=16)
    wider = choice(threshold=0.9).wider(unmet)
    assert wider is not None
    assert wider.to_compute((1000,), 20, 48, 200) == 32
    assert choice(threshold=0.9, max_components=16).wider(unmet) is None
    assert choice(threshold=0.9).wider(UnmetError("")) is None


@pytest.mark.parametrize(("total", "kept"), [(2, 2), (3, 2), (5, 5), (6, 5), (7, 7), (9, 7), (10, 10)])
def test_components_that_cells_share_are_kept_in_all_of_them(total: int, kept: int) -> None:
    """Two places of one shape and three of another: 2, 5, 7 or 10 components in all."""
    places = np.array([2, 2, 3, 3, 3])
    variances = np.array([[9.0, 4.0]] * 2 + [[6.0, 1.0]] * 3)
    known = EigenvalueSpectrum(variances, np.full(5, 14.0), np.full(5, 4), 50, places)
    np.testing.assert_array_equal(known.counts, [0, 2, 5, 7, 10])
    assert choice(total_components=total).ranks(known).sum() == kept
    with pytest.raises(UnmetError, match="share"):
        choice(total_components=1).ranks(known)


def test_the_error_of_the_samples_of_the_fit_is_what_their_eigenvalues_leave() -> None:
    """Eigenvalues have the divisor n - 1, means of squares n: (19 - 8 - 4) 10 / 11 / 10 attributes after two."""
    left = np.array([19, 11, 7, 4, 3]) / 11
    for count, mse in enumerate(left):
        ranks, reached = choice(target_mse=mse * (1 + 1e-12)).ranks_for_error(KNOWN, KNOWN.captured, 1.0)
        assert ranks.sum() == count
        assert reached.value == pytest.approx(mse)
        assert reached.standard_error == 0
    _, reached = choice(target_psnr=21.0).ranks_for_error(KNOWN, KNOWN.captured, 10.0)
    assert reached.value == pytest.approx(-10 * math.log10(left[2] / 10**2))
    with pytest.raises(UnmetError, match="more.samples"):
        whole = EigenvalueSpectrum(VARIANCES, KNOWN.totals, np.array([2, 2]), 11)
        choice(target_mse=0.01).ranks_for_error(whole, whole.captured, 1.0)
    with pytest.raises(UnmetError, match=r"--max-components.*\b2\b"):
        choice(target_mse=0.01).ranks_for_error(KNOWN, KNOWN.captured, 1.0)
    with pytest.raises(UnmetError, match="more.samples"):  # two samples have no more components
        choice(target_mse=0.01).ranks_for_error(
            EigenvalueSpectrum(VARIANCES, KNOWN.totals, np.array([5, 5]), 2), KNOWN.captured, 1.0
        )


def test_a_signal_without_any_error_has_an_infinite_ratio() -> None:
    captured = CapturedVariance(np.array([[[4.0], [0.0]], [[6.0], [0.0]]]), np.array([4.0, 6.0]), np.array([2, 2]), "x")
    known = EigenvalueSpectrum(np.array([[3.0], [0.0]]), np.array([3.0, 0.0]), np.array([1, 1]), 4)
    _, reached = choice(target_psnr=50.0).ranks_for_error(known, captured, 1.0)
    assert (reached.value, reached.standard_error) == (math.inf, 0.0)


def test_the_bounds_of_what_can_be_asked() -> None:
    assert choice(target_ssim=1.0).value == 1
    assert choice(target_mse=1.0, validation_fraction=0.5).validation_fraction == 0.5
    for wrong in ({"target_ssim": 1.01}, {"target_mse": 1.0, "validation_fraction": 0.51}, {"target_mse": math.inf}):
        with pytest.raises(DataError, match="target_ssim|target_mse|validation_fraction"):
            choice(**wrong)


def test_noise_is_bounded_too() -> None:
    variances = np.array([[90.0, 80.0, 1.0, 1.0]])
    known = EigenvalueSpectrum(variances, variances.sum(axis=1), np.array([4]), 1000)
    assert choice(n_components="marchenko-pastur").ranks(known).tolist() == [2]
    assert choice(n_components="marchenko-pastur", max_components=1).ranks(known).tolist() == [1]


def test_a_partition_that_keeps_all_of_its_attributes_wants_no_more() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = EigenvalueSpectrum(VARIANCES, KNOWN.totals, np.array([2, 2]), 11)
        choice(ratio=1).warn_where_short(np.array([2, 2]), whole)
        choice(ratio=1).warn_where_short(np.array([1, 1]), KNOWN)
        choice(ratio=1, max_components=2).warn_where_short(np.array([2, 2]), KNOWN)
    with pytest.warns(RankWarning, match=r"\b1\b.*\b2\b"):
        choice(ratio=1).warn_where_short(np.array([2, 1]), KNOWN)
