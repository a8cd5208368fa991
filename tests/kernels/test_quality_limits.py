"""MSE and SSIM where their arithmetic is at its limits: any shape, any integer, any unit."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from dpca.kernels.algebra import linalg
from dpca.kernels.quality import mse_per_sample, ssim_per_sample


def reference(x: np.ndarray, y: np.ndarray, data_range: float, n_spatial: int) -> list[float]:
    """scikit-image in float64, channel by channel."""
    found = []
    for a, b in zip(x, y, strict=True):
        planes = [v.astype(float).reshape(*v.shape[:n_spatial], -1) / data_range for v in (a, b)]
        channels = [structural_similarity(p, q, data_range=1) for p, q in zip(*(np.moveaxis(v, -1, 0) for v in planes))]  # noqa: B905
        found.append(float(np.mean(channels)))
    return found


@given(
    st.lists(st.integers(7, 23), min_size=1, max_size=3),
    st.sampled_from([(), (1,), (3,), (2, 2)]),
    st.sampled_from([bool, np.uint8, np.int16, np.uint16, np.int32, np.float16, np.float32, np.float64]),
    st.integers(1, 3),
    st.integers(0, 2**30),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_ssim_and_mse_of_any_shape_and_dtype(
    spatial: list[int], channels: tuple[int, ...], dtype: Any, n: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    top = {"b": 1, "u": np.iinfo(np.uint8).max, "i": 30_000, "f": 100}[np.dtype(dtype).kind]
    x, y = (np.round(rng.random((n, *spatial, *channels)) * top).astype(dtype) for _ in range(2))
    found = ssim_per_sample(x, y, data_range=top, n_spatial=len(spatial))
    np.testing.assert_allclose(found, reference(x, y, top, len(spatial)), atol=1e-6)
    exact = ((x.astype(float) - y.astype(float)) ** 2).reshape(n, -1).mean(axis=1)
    np.testing.assert_allclose(mse_per_sample(x, y, data_range=1), exact, rtol=1e-6)
    np.testing.assert_allclose(mse_per_sample(x, y, data_range=4), exact / 16, rtol=1e-6)


@pytest.mark.parametrize("shape", [(700, 131), (260, 263, 3), (7, 20_000), (7, 70_001), (70, 31, 37), (9, 90, 91)])
def test_images_longer_than_one_pass(shape: tuple[int, ...]) -> None:
    """Passes of 65,536 positions: their seams must not show."""
    rng = np.random.default_rng(0)
    n_spatial = 2 if shape[-1] == 3 else len(shape)
    x = rng.integers(0, 256, (1, *shape), dtype=np.uint8)
    y = np.clip(x + rng.normal(0, np.linspace(1, 90, shape[0]).reshape(-1, *(1,) * (len(shape) - 1)), x.shape), 0, 255)
    y = y.astype(np.uint8)
    found = ssim_per_sample(x, y, data_range=255, n_spatial=n_spatial)
    np.testing.assert_allclose(found, reference(x, y, 255, n_spatial), atol=1e-7)


@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1.0, 1e6, 1e20, 1e37])
def test_quality_does_not_depend_on_the_unit(unit: float) -> None:
    rng = np.random.default_rng(1)
    x = (rng.random((2, 19, 20)) * unit).astype(np.float32)
    y = (x * rng.uniform(0.8, 1.2, x.shape)).astype(np.float32)
    found = ssim_per_sample(x, y, data_range=unit, n_spatial=2)
    np.testing.assert_allclose(found, reference(x, y, unit, 2), atol=1e-6)
    exact = ((x.astype(float) / unit - y.astype(float) / unit) ** 2).mean(axis=(1, 2))
    np.testing.assert_allclose(mse_per_sample(x, y, data_range=unit), exact, rtol=1e-6)
    np.testing.assert_allclose(mse_per_sample(x, y, data_range=1), exact * unit**2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_wide_integers_keep_their_last_digits(dtype: type) -> None:
    x = np.full((1, 8, 8), 2**30 + 1, dtype)
    np.testing.assert_array_equal(mse_per_sample(x, x + 1, data_range=1), 1)


def test_mse_by_hand() -> None:
    x = np.array([[[0, 255], [10, 10]], [[1, 2], [3, 4]]], np.uint8)
    y = np.array([[[255, 0], [10, 14]], [[1, 2], [3, 4]]], np.uint8)
    np.testing.assert_array_equal(mse_per_sample(x, y, data_range=1), [(2 * 255**2 + 16) / 4, 0])


def test_a_sign_is_not_lost() -> None:
    """An inverted image has negative SSIM; a brighter one the same variance."""
    x = np.random.default_rng(2).integers(60, 120, (1, 30, 30), dtype=np.uint8)
    for y in (180 - x, x + 60):
        np.testing.assert_allclose(
            ssim_per_sample(x, y, data_range=255, n_spatial=2), reference(x, y, 255, 2), atol=1e-6
        )
    assert ssim_per_sample(x, 180 - x, data_range=255, n_spatial=2)[0] < 0


def test_images_that_are_views() -> None:
    """Neither contiguous nor owners of their memory."""
    x = np.random.default_rng(3).integers(0, 256, (4, 24, 26, 3), dtype=np.uint8)
    a, b = x[::2, ::2, 3:], x[1::2, ::2, 3:]
    found = ssim_per_sample(a, b, data_range=255, n_spatial=2)
    np.testing.assert_allclose(found, reference(a, b, 255, 2), atol=1e-6)
    np.testing.assert_array_equal(mse_per_sample(a, b, data_range=1), mse_per_sample(a.copy(), b.copy(), data_range=1))


def test_temporaries_do_not_grow_with_the_number_of_images() -> None:
    peaks = []
    for n in (2, 20):
        x = np.zeros((n, 300, 300, 3), np.uint8)
        linalg.release_scratch()
        tracemalloc.start()
        ssim_per_sample(x, x, data_range=255, n_spatial=2)
        mse_per_sample(x, x, data_range=255)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    linalg.release_scratch()
    assert peaks[1] < peaks[0] + 1_500_000
    assert peaks[0] < 16 * 65_536 * 4 + 270_000 * 4 + 2**20
