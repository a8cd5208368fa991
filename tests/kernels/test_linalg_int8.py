"""Products of bytes against integer arithmetic in 64 bits, and the trial that decides whether a library is used."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels.algebra import linalg_int8

needs_library = pytest.mark.skipif(not linalg_int8.is_available(), reason="no library of exact 8-bit products here")


def values_of(block: np.ndarray) -> np.ndarray:
    return block.astype(np.int64) - (128 if block.dtype == np.uint8 else 0)


def assert_exact(block: np.ndarray) -> None:
    product, total = linalg_int8.gram_lower(block)
    x = values_of(block)
    np.testing.assert_array_equal(np.tril(product), np.tril(x.T @ x))
    np.testing.assert_array_equal(total, x.sum(axis=0))
    assert product.dtype == total.dtype == np.int32


@needs_library
@given(st.sampled_from([np.uint8, np.int8, bool]), st.integers(0, 300), st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60, derandomize=True)
def test_any_shape(dtype: type, n: int, d: int, seed: int) -> None:
    low, high = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    assert_exact(np.random.default_rng(seed).integers(low, high, (n, d), endpoint=True).astype(dtype))


@pytest.mark.cases(4)
@needs_library
@pytest.mark.parametrize("d", [511, 512, 513, 600])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_both_sides_of_the_size_from_which_a_quarter_is_left_out(d: int, dtype: type) -> None:
    block = np.random.default_rng(d).integers(0, 256, (333, d), dtype=np.uint8)
    before = block.copy()
    assert_exact(block.view(dtype))
    np.testing.assert_array_equal(block, before)


@needs_library
@pytest.mark.parametrize("value", [0, 127, 128, 255])
def test_the_most_rows_of_the_most_extreme_bytes_do_not_overflow(value: int) -> None:
    assert_exact(np.full((linalg_int8.MOST_ROWS, 2), value, np.uint8))


@needs_library
def test_what_lies_above_the_diagonal_is_the_same_each_time() -> None:
    """States are compared byte for byte, whatever the scratch memory held before."""
    block = np.random.default_rng(1).integers(0, 256, (50, 520), dtype=np.uint8)
    first = linalg_int8.gram_lower(block)[0].copy()
    linalg_int8.gram_lower(np.full((50, 520), 255, np.uint8))
    np.testing.assert_array_equal(linalg_int8.gram_lower(block)[0], first)


def saturating(a: Any, m: int, b: Any, k: int, out: Any) -> None:
    """What AVX2 makes of such a product: each sum of two neighboring products must fit 16 bits."""
    signed, unsigned = a[:, :m].astype(np.int64), b[:, :k].astype(np.int64)
    pairs = np.einsum("pik,pij->pkj", unsigned.reshape(-1, 2, k), signed.reshape(-1, 2, m))
    out[:k, :m] = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=0)


def honest(a: Any, m: int, b: Any, k: int, out: Any) -> None:
    out[:k, :m] = b[:, :k].astype(np.int64).T @ a[:, :m].astype(np.int64)


@pytest.mark.parametrize(("multiply", "used"), [(honest, True), (saturating, False), (None, False)])
def test_a_library_is_used_only_if_it_is_exact(monkeypatch: pytest.MonkeyPatch, multiply: Any, used: bool) -> None:
    linalg_int8._exact_product.cache_clear()
    monkeypatch.setattr(linalg_int8, "_load", lambda: multiply)
    try:
        assert linalg_int8.is_available() == used
        block = np.array([[0, 255], [255, 3]], np.uint8)
        if used:
            assert_exact(block)
        else:
            with pytest.raises(RuntimeError, match="is_available"):
                linalg_int8.gram_lower(block)
    finally:
        linalg_int8._exact_product.cache_clear()


def test_no_library_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(linalg_int8.sys, "prefix", str(tmp_path))
    assert linalg_int8._load() is None


@needs_library
def test_the_library_leaves_the_parallelism_to_tasks() -> None:
    found = sorted(linalg_int8.Path(linalg_int8.sys.prefix, "lib").glob("libmkl_rt.so*"))
    assert ctypes.CDLL(str(found[-1])).MKL_Get_Max_Threads() == 1


@needs_library
@pytest.mark.parametrize(
    ("flags", "pays"), [("avx2 avx512_vnni", True), ("avx2 avx_vnni", True), ("avx avx2", False), (None, False)]
)
def test_it_pays_where_the_processor_has_instructions_for_it(
    flags: str | None, pays: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"flags : fpu {flags}\n")
    monkeypatch.setattr(linalg_int8, "_PROCESSORS", tmp_path / "cpuinfo")
    linalg_int8.pays.cache_clear()
    try:
        assert linalg_int8.pays() == pays
    finally:
        linalg_int8.pays.cache_clear()
