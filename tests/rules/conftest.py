"""Both ways of multiplying integers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpca.kernels import integer_products
from dpca.kernels.algebra import integers


@pytest.fixture(scope="module", params=["integers", "floats"])
def products(request: pytest.FixtureRequest) -> Iterator[None]:
    """Covariances of integers by integer products, then by exact float products."""
    if request.param == "integers" and not integer_products.INSTRUCTION:
        pytest.skip("no dot-product instruction here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integers, "kernel", lambda _=0: integer_products if request.param == "integers" else None)
        yield
