"""Gains against the equations of Günter, Schraudolph & Vishwanathan (2007), by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dpca.rules.base.schedules import Constant
from dpca.rules.kernel.gains import VARIANTS, Gains, gains_of

EIGENVALUES = np.array([4.0, 3.0])


@pytest.mark.parametrize(
    ("variant", "at_2"),
    [
        ("constant", [6, 6]),
        ("t", [4, 4]),  # 9: 6 * 4 / (2 + 4)
        ("et*", [1, 4 / 3]),  # 19
        ("et", [5, 20 / 3]),  # 22: |lambda| = 5
        ("smd*", [1, 4 / 3]),
        ("smd", [5, 20 / 3]),
        ("s", [6, 6]),
        ("ts", [4, 4]),
        ("es", [1.5, 2]),
    ],
)
def test_values(variant: str, at_2: list[float]) -> None:
    gains = gains_of(variant, 6.0, 4.0, 0.25)
    np.testing.assert_allclose(gains(2, EIGENVALUES), at_2, rtol=1e-15)
    assert gains.meta == (0.25 if VARIANTS[variant][3] else 0)


def test_rows_of_no_eigenvalue_stay() -> None:
    np.testing.assert_array_equal(gains_of("et*", 6.0, 4.0)(2, np.array([4.0, 0.0])), [1, 0])


def test_bad_gains() -> None:
    with pytest.raises(ValueError, match="variant"):
        gains_of("tt", 1.0, 1.0)
    with pytest.raises(ValueError, match="^eta"):
        Gains(0.1)  # type: ignore[arg-type]
    for name, values in {
        "meta": [-1.0, np.nan],
        "decay": [-0.1, 1.5],
        "by_eigenvalue": [1],
        "by_length": ["no"],
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"^{name}\b"):
                Gains(Constant(1.0), **{name: value})
