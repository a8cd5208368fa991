"""Both ways of multiplying bytes, whether or not the library for one of them is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpca.kernels.algebra import linalg_int8


@pytest.fixture(scope="module", params=["bytes", "floats"])
def products(request: pytest.FixtureRequest) -> Iterator[None]:
    """Covariances of 8-bit samples by integer products, then by exact float products."""
    if request.param == "bytes" and not linalg_int8.is_available():
        pytest.skip("no library of exact 8-bit products here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linalg_int8, "pays", lambda: request.param == "bytes")
        yield
