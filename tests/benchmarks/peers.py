"""Packages that are compared in benchmarks and that continuous integration cannot install.

The tests compare with the stored results of such packages, see `tests/fixtures/other_libraries.py`.
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

HAS_XEOFS = all(importlib.util.find_spec(name) for name in ("xeofs", "xarray"))


def fit_xeofs(field: Any, n_modes: int, **options: Any) -> Any:
    """Return an EOF model of xeofs, fitted to a DataArray along its dim "time"."""
    from xeofs.single import EOF

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return EOF(n_modes=n_modes, **options).fit(field, dim="time")
