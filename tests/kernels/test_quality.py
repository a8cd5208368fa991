"""MSE, PSNR and SSIM against scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from dpca.kernels.quality import has_ssim, mse_per_sample, psnr_from_mse, ssim_per_sample
from tests.conftest import smooth_images


def noisy_pair(shape: tuple[int, ...], dtype: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0.5, 0.2, (3, *shape)).cumsum(axis=1) / shape[0]
    y = x + rng.normal(0, 0.05, x.shape)
    top = float(np.iinfo(dtype).max) if np.dtype(dtype).kind == "u" else 1.0
    return (np.clip(x, 0, 1) * top).astype(dtype), (np.clip(y, 0, 1) * top).astype(dtype), top


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "n_spatial"),
    [((31, 23, 3), 2), ((7, 9), 2), ((300, 400), 2), ((9, 8, 11), 3), ((9, 8, 7, 2), 3), ((40,), 1)],
)
def test_ssim_is_that_of_scikit_image(shape: tuple[int, ...], n_spatial: int, dtype: type) -> None:
    x, y, top = noisy_pair(shape, dtype)
    channels = -1 if len(shape) > n_spatial else None
    # In float64, the reference is exact to the last digits; ours works in float32 for narrow types.
    reference = [
        structural_similarity(a.astype(float), b.astype(float), channel_axis=channels, data_range=top)
        for a, b in zip(x, y, strict=True)
    ]
    found = ssim_per_sample(x, y, data_range=top, n_spatial=n_spatial)
    np.testing.assert_allclose(found, reference, atol=1e-12 if dtype == np.float64 else 2e-6)


def test_ssim_of_bright_smooth_photographs_keeps_its_digits() -> None:
    """Small variances beside large means are where float32 would cancel."""
    x = (smooth_images(4, (64, 60, 3)) // 8 + 220).astype(np.uint8)
    y = np.clip(x.astype(int) + np.random.default_rng(0).integers(-1, 2, x.shape), 0, 255).astype(np.uint8)
    reference = [
        structural_similarity(a.astype(float), b.astype(float), channel_axis=-1, data_range=255)
        for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(ssim_per_sample(x, y, data_range=255, n_spatial=2), reference, atol=2e-6)


def test_equal_images() -> None:
    x = smooth_images(2)
    np.testing.assert_allclose(ssim_per_sample(x, x, data_range=255, n_spatial=2), 1, atol=1e-7)
    np.testing.assert_array_equal(mse_per_sample(x, x, data_range=255), 0)
    np.testing.assert_array_equal(psnr_from_mse(np.zeros(2)), np.inf)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_mse_and_psnr(dtype: type) -> None:
    x, y, top = noisy_pair((31, 23, 3), dtype)
    mse = mse_per_sample(x, y, data_range=top)
    expected = [mean_squared_error(a.astype(float) / top, b.astype(float) / top) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(mse, expected, rtol=1e-5)
    psnr = [
        peak_signal_noise_ratio(a.astype(float), b.astype(float), data_range=top) for a, b in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(psnr_from_mse(mse), psnr, atol=1e-4)


def test_pixels_and_values_that_are_not_rounded() -> None:
    x = smooth_images(2, (20, 21, 3))
    y = x + np.float32(0.25)
    np.testing.assert_allclose(mse_per_sample(x, y, data_range=255), (0.25 / 255) ** 2)
    found = ssim_per_sample(x, y, data_range=255, n_spatial=2)
    np.testing.assert_array_equal(found, ssim_per_sample(x.astype(np.float32), y, data_range=255, n_spatial=2))


def test_an_image_smaller_than_the_window_is_refused() -> None:
    x = np.zeros((1, 6, 20))
    with pytest.raises(ValueError, match="7"):
        ssim_per_sample(x, x, data_range=1, n_spatial=2)


def test_which_samples_have_a_similarity() -> None:
    has = {(7, 7): 2, (6, 7): 2, (9, 9, 3): 2, (7, 7, 7): 3, (7, 7, 6): 3, (99,): 1}
    assert [has_ssim(shape, n) for shape, n in has.items()] == [True, False, True, True, False, False]
