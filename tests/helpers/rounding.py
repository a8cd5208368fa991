"""What rounding may change: BLAS sums in an order of its own, which depends on the processor and the number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_equal_up_to_rounding(found: Any, expected: Any, n_terms: int, length: float) -> None:
    """Compare two sums, in any order, of so many products of unit vectors with vectors of at most such a length.

    Each is within ``n_terms`` units of rounding of the truth (Higham 2002, "Accuracy and stability of numerical
    algorithms", equation 3.5).
    """
    assert found.dtype == expected.dtype
    unit = float(np.finfo(expected.dtype).eps) / 2
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * n_terms * unit * length)
