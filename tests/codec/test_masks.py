"""Masks come back, take few bytes, and other bytes are an error or another mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import Zstd  # type: ignore[import-untyped]
from scipy.ndimage import gaussian_filter

from dpca.codec.masks import coded_mask, decoded_mask, mask_bytes, of_values


@settings(deadline=None)  # the first example compiles
@given(
    shape=st.lists(st.integers(1, 7), min_size=2, max_size=4),
    share=st.sampled_from([0.0, 0.02, 0.3, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_a_mask_comes_back(shape: list[int], share: float, seed: int) -> None:
    """Whatever its shape and however many values are missing, in as many bytes as stated."""
    mask = np.random.default_rng(seed).random(shape) < share
    coded = coded_mask(mask)
    assert len(coded) == mask_bytes(tuple(shape))
    np.testing.assert_array_equal(decoded_mask(coded, tuple(shape)), mask)


def test_land_and_clouds_take_few_bytes() -> None:
    """The same mask in all samples: less than 0.01 bit a value. Moving clouds: two thirds of zstd's packed bits."""
    rng = np.random.default_rng(0)
    field = gaussian_filter(rng.standard_normal((64, 60, 80)), (3, 5, 5), mode="wrap")
    clouds = field < np.quantile(field, 0.3)
    land = np.broadcast_to(gaussian_filter(rng.standard_normal((60, 80)), 6) < 0, clouds.shape)
    packed = Zstd(19)

    def size(mask: np.ndarray) -> int:
        return len(packed.encode(coded_mask(mask)))

    assert 8 * size(land) < 0.01 * land.size
    assert size(clouds) < 2 / 3 * len(packed.encode(np.packbits(clouds, axis=-1)))
    assert size(clouds | land) < 2 / 3 * len(packed.encode(np.packbits(clouds | land, axis=-1)))


@settings(deadline=None)
@given(seed=st.integers(0, 2**16))
def test_any_bytes_are_read(seed: int) -> None:
    """Coded bytes that no mask has still end, in some mask of the shape."""
    shape = (5, 6, 7)
    coded = np.random.default_rng(seed).integers(0, 256, mask_bytes(shape)).astype(np.uint8)
    coded[0] = 1
    assert decoded_mask(coded, shape).shape == shape


def test_other_bytes_are_refused() -> None:
    """An unknown first byte, and too few bytes."""
    coded = coded_mask(np.zeros((3, 4), bool))
    with pytest.raises(ValueError, match="mask"):
        decoded_mask(coded[:-1], (3, 4))
    coded[0] = 2
    with pytest.raises(ValueError, match="mask"):
        decoded_mask(coded, (3, 4))


def test_quality_is_that_of_values_that_are_there() -> None:
    """Means over all values become means over those that are there; samples without any have no error."""
    missing = np.array([[True, True, True, False], [True] * 4, [False] * 4])
    found = of_values({"mse": np.array([0.5, 0.0, 0.25]), "ssim": np.array([0.9, 1.0, 0.75])}, missing)
    np.testing.assert_allclose(found["mse"], [2, 0, 0.25])
    np.testing.assert_allclose(found["ssim"], [0.6, 1, 0.75])
