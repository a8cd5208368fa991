"""Quality of reconstructions, per sample: MSE, PSNR and SSIM."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra import linalg
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array

#: Side of the uniform SSIM window, in pixels: the default of scikit-image. All reported SSIM values use it.
#: `dpca.kernels.sweeps.window_sum` adds as many values.
WINDOW = 7
_K1, _K2 = 0.01, 0.03
# Positions of a pass. Passes overlap by six rows. Larger ones repeat less work, but must fit the cache (measured).
_PASS_POSITIONS = 49_152


def has_ssim(sample_shape: tuple[int, ...], n_spatial: int) -> bool:
    """Return whether SSIM is defined: images and volumes must be at least as long as its window along every axis."""
    return n_spatial > 1 and min(sample_shape[:n_spatial]) >= WINDOW


def mse_per_sample(x: Array, y: Array, *, data_range: float) -> Array:
    """Return the MSE (n_samples,) of samples in units of data_range squared, like `dpca.metrics.mse`."""
    if _are_bytes(x, y):
        from dpca.kernels import byte_quality

        unit = float(data_range) ** 2
        return np.array([byte_quality.squared_distance(a, b) / unit / a.size for a, b in _flat_pairs(x, y)])
    from dpca.kernels.sweeps import squared_distance

    return np.array([squared_distance(a, b, float(data_range)) / a.size for a, b in _flat_pairs(x, y)])


def psnr_from_mse(mse: Array) -> Array:
    """Return the peak signal-to-noise ratio in decibels of an MSE in units of data_range squared; infinite at 0."""
    mse = np.asarray(mse, np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(-10 * np.log10(mse))


def ssim_per_sample(x: Array, y: Array, *, data_range: float, n_spatial: int) -> Array:
    """Return the structural similarity of each sample, like `dpca.metrics.ssim`.

    With p = x + y and m = x - y, the windowed means of four fields suffice: 4 cov = var(p) - var(m) and
    2 (var x + var y) = var(p) + var(m); likewise for the products of the means.
    """
    sample_shape = x.shape[1:]
    spatial = sample_shape[:n_spatial]
    if min(spatial) < WINDOW:
        raise ValueError(f"SSIM requires at least {WINDOW} pixels along every spatial axis, got {spatial}")
    if n_spatial == 2 and _are_bytes(x, y):
        return _similarity_of_bytes(x, y, data_range)
    from dpca.kernels import sweeps

    work = working_dtype(np.result_type(x, y))
    unit, window = work.type(data_range), WINDOW**n_spatial
    # Each factor of numerator and denominator is twice the published one. The constants are doubled accordingly.
    c1, c2 = work.type(2 * _K1**2), work.type(2 * _K2**2 * (window - 1) / window)
    row = math.prod(sample_shape[1:])
    strides = tuple(math.prod(sample_shape[axis + 1 :]) for axis in range(n_spatial))
    starts, inside = _starts_of_windows(sample_shape, n_spatial)
    rows = min(max(1, _PASS_POSITIONS // row), starts[0])
    fields, others = (
        [linalg.scratch(f"ssim {i}{j}", ((rows + WINDOW - 1) * row,), work) for j in range(4)] for i in range(2)
    )
    result = np.empty(len(x))
    for i, (a, b) in enumerate(_flat_pairs(x, y)):
        totals = np.zeros(row)
        for first in range(0, starts[0], rows):
            part = slice(first * row, (min(first + rows, starts[0]) + WINDOW - 1) * row)
            values, free = [field[: part.stop - part.start] for field in fields], others
            # A shift by about the mean reduces the rounding errors of the variances.
            center = 2 * a[part.start : part.stop : 31].mean(dtype=work) / unit
            sweeps.sums_and_differences(a[part], b[part], unit, center, *values)
            for stride in reversed(strides):
                sums = [out[: len(v) - (WINDOW - 1) * stride] for v, out in zip(values, free, strict=True)]
                for field, out in zip(values, sums, strict=True):
                    sweeps.window_sum(field, stride, out)
                values, free = sums, fields if free is others else others
            out = free[0][: len(values[0])]
            p, m, pp, mm = values
            sweeps.similarities(p, m, pp, mm, c1, c2, work.type(1 / window), center, out)
            sweeps.add_rows(out, inside.ravel(), totals)
        result[i] = totals.sum() / inside.sum() / starts[0]
    return result


def quality_of(
    x: Array, y: Array, *, data_range: float, n_spatial: int, measures: Collection[str] = ("mse", "ssim")
) -> dict[str, Array]:
    """Return measures (n_samples,) of samples by name. SSIM is left out if it is not defined."""
    found = {"mse": mse_per_sample(x, y, data_range=data_range)} if "mse" in measures else {}
    if "ssim" in measures and has_ssim(x.shape[1:], n_spatial):
        found["ssim"] = ssim_per_sample(x, y, data_range=data_range, n_spatial=n_spatial)
    return found


def quality_bytes(sample_shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Return the bytes of temporary arrays of `ssim_per_sample` and `mse_per_sample`."""
    row, sample, work = math.prod(sample_shape[1:]), math.prod(sample_shape), working_dtype(dtype)
    fields = 8 * min(max(_PASS_POSITIONS, row) + (WINDOW - 1) * row, sample) * work.itemsize
    # Pairs of other types are copied, while the pair before is still there.
    copied = 0 if np.dtype(dtype) in (np.uint8, work) else 4 * sample * work.itemsize
    return fields + copied + 24 * row


def _similarity_of_bytes(x: Array, y: Array, data_range: float) -> Array:
    """Return the structural similarity of images of bytes; twice as fast as with floats (measured)."""
    from dpca.kernels.byte_quality import similarity

    height, row = x.shape[1], math.prod(x.shape[2:])
    starts, inside = _starts_of_windows(x.shape[1:], 2)
    # Sums of windows are not divided: both factors of numerator and denominator are multiplied by 2 * 49^2.
    scale, window = 2 * WINDOW**4 * float(data_range) ** 2, WINDOW**2
    c1, c2 = np.float32(scale * _K1**2), np.float32(scale * _K2**2 * (window - 1) / window)
    stride, work = row // x.shape[2], linalg.scratch("ssim", (8, row), np.dtype(np.int32))
    images = ((a.reshape(height, row), b.reshape(height, row)) for a, b in _flat_pairs(x, y))
    sums = [similarity(a, b, WINDOW, stride, c1, c2, inside.reshape(-1), work) for a, b in images]
    return np.array(sums) / inside.sum() / starts[0]


def _starts_of_windows(sample_shape: tuple[int, ...], n_spatial: int) -> tuple[list[int], Array]:
    """Return the number of windows along each axis, and 1 where one starts along all axes but the first, else 0."""
    starts = [s - WINDOW + 1 for s in sample_shape[:n_spatial]]
    inside = np.zeros(sample_shape[1:])
    inside[tuple(slice(0, s) for s in starts[1:])] = 1
    return starts, inside


def _are_bytes(x: Array, y: Array) -> bool:
    return bool(x.dtype == np.uint8 and y.dtype == np.uint8)


def _flat_pairs(x: Array, y: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the flat pixels of each pair of samples, as uint8, float32 or float64: loops are compiled for these."""
    dtype = np.result_type(x, y)
    dtype = dtype if dtype == np.uint8 else working_dtype(dtype)
    for a, b in zip(x, y, strict=True):
        yield np.ascontiguousarray(a, dtype).reshape(-1), np.ascontiguousarray(b, dtype).reshape(-1)
