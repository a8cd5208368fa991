"""Exact products of bytes with fixed rows against Python's integers, with and without the processor's instructions."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels import cross_products, integer_products
from dpca.kernels.algebra import integers
from dpca.kernels.byte_points import BytePoints, moments
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.kernels.integer_products import INSTRUCTION, INSTRUCTIONS
from tests.kernels.test_integer_products import drawn, emulated, globals_of

BYTES = ("uint8", "int8", "bool")


@pytest.fixture(params=["floats", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of floats, as before numba is loaded, or those of the processor's instructions."""
    if request.param == "compiled" and INSTRUCTION is None:
        pytest.skip("no dot-product instruction here")
    monkeypatch.setattr(integers, "compiled_pays", lambda count: request.param == "compiled")


def assert_exact(dtype: str, n: int, m: int, d: int, seed: int, extreme: bool) -> None:
    x, z = drawn(dtype, n, d, seed, extreme), drawn(dtype, m, d, seed + 1, extreme)
    rows, (sums, squares) = BytePoints(z), moments(x)
    wide, points = x.astype(int).astype(object), z.astype(int).astype(object)
    np.testing.assert_array_equal(sums, wide.sum(axis=1))
    np.testing.assert_array_equal(squares, (wide * wide).sum(axis=1))
    np.testing.assert_array_equal(rows.squares, (points * points).sum(axis=1))
    out = np.full((n, m), np.nan)
    rows.multiply(x, sums, -squares / 2, -rows.squares / 2, out=out)
    np.testing.assert_array_equal(-2 * out, ((wide[:, None] - points[None]) ** 2).sum(axis=2))
    rows.multiply(x, sums, 0, 0, out=out)
    np.testing.assert_array_equal(out, wide @ points.T)


@pytest.mark.usefixtures("way")
@given(
    st.sampled_from(BYTES),
    st.integers(1, 210),
    st.integers(1, 60),
    st.integers(1, 50),
    st.integers(0, 2**31),
    st.booleans(),
)
@settings(deadline=None, max_examples=40, derandomize=True)
def test_any_shape(dtype: str, n: int, m: int, d: int, seed: int, extreme: bool) -> None:
    assert_exact(dtype, n, m, d, seed, extreme)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", BYTES)
def test_long_rows_of_extreme_values(dtype: str) -> None:
    """They are longer than what is packed together, and than sums of 32 bits allow."""
    assert_exact(dtype, 3, 2, 3 * 4096 + 5, 0, True)
    d = 140_000
    least = np.full((1, d), 0 if dtype != "int8" else -128, dtype)
    rows, (sums, squares) = BytePoints(least), moments(least)
    rows.multiply(least, sums, 0, 0, out=(out := np.empty((1, 1))))
    assert out[0, 0] == squares[0] == d * int(least[0, 0]) ** 2


@pytest.mark.parametrize("feature", [one.feature for one in INSTRUCTIONS])
def test_other_processors(feature: str) -> None:
    instruction = next(one for one in INSTRUCTIONS if one.feature == feature)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_products, "_function_of", emulated)
        rows = globals_of(integer_products, instruction, ())
        changed = globals_of(cross_products, instruction, ("_add_packed",))
        changed["packed_rows"] = FunctionType(integer_products.packed_rows.__code__, rows)
        pack, add = (
            FunctionType(getattr(cross_products, name).__code__, changed)
            for name in ("packed_copy", "add_cross_products")
        )
        for dtype in BYTES:
            x, z = drawn(dtype, 201, 37, 1, True), drawn(dtype, 59, 37, 2, True)
            center, out = integers.center_of_range(dtype), np.ones((201, 59))
            add(x, pack(z), out)
            expected = (x.astype(int) - center) @ (z.astype(int) - center).T + 1
            np.testing.assert_array_equal(out, expected)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["rbf", "poly", "linear", "cosine"])
@pytest.mark.parametrize("dtype", BYTES)
def test_kernels_of_bytes_are_exact(name: str, dtype: str) -> None:
    """Those of floats are not: the squared distances of neighbors are lost between lengths of a million."""
    random = np.random.default_rng(0)
    z = drawn(dtype, 7, 400, 3, False)
    x = np.concatenate([z, z, np.zeros_like(z[:1])])
    x[:7, 0] ^= random.integers(0, 2, 7).astype(dtype)
    mapped, wide, points = KernelMap(Kernel(name, 0.5), z.astype(np.float32)), x.astype(float), z.astype(float)
    squares = ((wide[:, None] - points[None]) ** 2).sum(axis=2)
    lengths = [np.linalg.norm(some, axis=1) for some in (wide, points)]
    expected = {
        "rbf": np.exp(-0.5 * squares),
        "poly": (0.5 * wide @ points.T + 1) ** 3,
        "linear": wide @ points.T,
        "cosine": wide @ points.T / np.where(lengths[0] > 0, lengths[0], 1)[:, None] / lengths[1],
    }[name]
    found = mapped(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(mapped.own(), expected[7:14], rtol=1e-6, atol=1e-30)


def test_points_that_are_no_bytes_are_multiplied_as_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn("uint8", 5, 300, 0, False)
    monkeypatch.setattr(KernelMap, "_of_bytes", lambda *_: pytest.fail("multiplied as bytes"))
    for other in (0.5, -1, 256):
        z = x.astype(np.float32)
        z[3, 7] = other
        exact = x.astype(float) @ z.T.astype(float)
        np.testing.assert_allclose(KernelMap(Kernel("linear"), z)(x), exact, rtol=1e-5)
    KernelMap(Kernel("linear"), x[:, :255].astype(np.float32))(x[:, :255])
