"""Quality of reconstructions, one number an image: MSE, PSNR and SSIM."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpca.kernels import linalg
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.types import Array

#: Side of SSIM's uniform window, in pixels: scikit-image's default, the setting behind every number we report.
WINDOW = 7
_K1, _K2 = 0.01, 0.03
# Positions of a pass. Passes overlap by six rows: larger ones repeat less work, until they leave the cache (measured).
_PASS_POSITIONS = 65_536
# Sums of squares below this may have lost terms to underflow in float32.
_SMALL = 2.0**-80
# Ranges up to this, and down to its inverse, have squares within the range of float32.
_ORDINARY = 2.0**20


def has_ssim(sample_shape: tuple[int, ...], n_spatial: int) -> bool:
    """Say whether SSIM is defined: for images and volumes at least as long as its window along every spatial axis."""
    return n_spatial > 1 and min(sample_shape[:n_spatial]) >= WINDOW


def mse_per_sample(x: Array, y: Array, *, data_range: float) -> Array:
    """Return the MSE (n_samples,) of samples of one dtype, in units of data_range squared, as `dpca.metrics.mse`."""
    result = np.empty(len(x))
    work = working_dtype(x.dtype)
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        difference = linalg.scratch("difference", (a.size,), work)
        np.copyto(difference.reshape(a.shape), a)
        difference -= b.reshape(-1)
        # Dot products of short blocks, added up in float64, are exact enough without a float64 copy of the image.
        blocks = [difference[j : j + 4096] for j in range(0, a.size, 4096)]
        with np.errstate(over="ignore"):
            squares = [float(block @ block) for block in blocks]
        total = math.fsum(squares) if all(map(math.isfinite, squares)) else math.inf
        # One division after the other: the square of an extreme range is out of range itself.
        result[i] = total / a.size / data_range / data_range
        if not _SMALL < total < math.inf and difference.any():
            # Some squares, such as those of densities in SI units, are out of float32's range.
            with np.errstate(over="ignore"):
                scaled = difference.astype(np.float64) / data_range
                result[i] = float(np.square(scaled, out=scaled).mean())
    return result


def psnr_from_mse(mse: Array) -> Array:
    """Return the peak signal-to-noise ratio in decibels of an MSE in units of data_range squared; infinite at 0."""
    mse = np.asarray(mse, np.float64)
    with np.errstate(divide="ignore"):
        return np.asarray(-10 * np.log10(mse))


def ssim_per_sample(x: Array, y: Array, *, data_range: float, n_spatial: int) -> Array:
    """Return the structural similarity of each sample, by scikit-image's definition.

    Alakkari 2020, equation 2.25 (Wang et al. 2004, equation 13), over a uniform window of 7 pixels a side, with sample
    covariance, K1 = 0.01 and K2 = 0.03, averaged over channels and the positions where the whole window lies inside the
    image. These are the defaults of ``skimage.metrics.structural_similarity``; results agree to 1e-6, in less than half
    the time.

    It follows from the windowed means of only four fields, with p = x + y and m = x - y: 4 cov = var(p) - var(m)
    and 2 (var x + var y) = var(p) + var(m); likewise for the products of the means.

    Parameters, result and errors as those of `dpca.metrics.ssim`.
    """
    sample_shape = x.shape[1:]
    spatial = sample_shape[:n_spatial]
    if min(spatial) < WINDOW:
        raise ValueError(f"SSIM needs at least {WINDOW} pixels along every spatial axis, got {spatial}")
    work = working_dtype(x.dtype)
    # float32 cannot hold the square of an extreme range: values are divided by the range first.
    unit = 1.0 if 1 / _ORDINARY < data_range < _ORDINARY else data_range
    stride0 = math.prod(sample_shape[1:])
    strides = [math.prod(sample_shape[axis + 1 :]) for axis in range(n_spatial)]
    rows = max(1, _PASS_POSITIONS // stride0)
    positions = math.prod(s - WINDOW + 1 for s in spatial) * math.prod(sample_shape[n_spatial:])
    inside = tuple(slice(0, s - WINDOW + 1) for s in spatial[1:])
    result = np.empty(len(x))
    for i in range(len(x)):
        a, b = x[i].reshape(-1), y[i].reshape(-1)
        total = 0.0
        for row in range(0, spatial[0] - WINDOW + 1, rows):
            n_rows = min(rows, spatial[0] - WINDOW + 1 - row)
            part = slice(row * stride0, (row + n_rows + WINDOW - 1) * stride0)
            values = _ssim_positions(a[part], b[part], strides, data_range / unit, unit, work)
            grid = values[: n_rows * stride0].reshape(n_rows, *sample_shape[1:])
            total += float(grid[(slice(None), *inside)].sum(dtype=np.float64))
        result[i] = total / positions
    return result


def _ssim_positions(
    x: Array, y: Array, strides: list[int], data_range: float, unit: float, work: np.dtype[Any]
) -> Array:
    """Return SSIM at every flat position; where a window crosses the end of an axis the value has no meaning.

    ``data_range`` is in units of ``unit``; the pixels are not, and are divided by it here.
    """
    n = len(x)
    p = linalg.scratch("ssim p", (n,), work)
    m = linalg.scratch("ssim m", (n,), work)
    np.copyto(m, y)
    np.copyto(p, x)
    if unit != 1:
        m /= unit
        p /= unit
    np.subtract(p, m, out=m)  # x - y
    p *= 2
    p -= m  # x + y
    # A shift leaves variances as they are and makes their rounding errors smaller.
    center = work.type(p.mean(dtype=np.float64))
    p -= center
    window = WINDOW ** len(strides)
    mean_p = _window_mean(p, strides, "ssim mean p")
    mean_m = _window_mean(m, strides, "ssim mean m")
    p *= p
    m *= m
    var_p = _window_mean(p, strides, "ssim var p")
    var_m = _window_mean(m, strides, "ssim var m")
    k = len(mean_p)
    square = linalg.scratch("ssim square", (k,), work)
    var_p -= np.multiply(mean_p, mean_p, out=square)
    mean_m *= mean_m
    var_m -= mean_m
    mean_p += center
    mean_p *= mean_p
    # Numerator and denominator are twice the published ones in each of their factors, and so are the constants.
    unbiased = window / (window - 1)
    c1, c2 = 2 * (_K1 * data_range) ** 2, 2 * (_K2 * data_range) ** 2 / unbiased
    numerator = np.subtract(mean_p, mean_m, out=square)
    numerator += c1
    mean_p += mean_m
    mean_p += c1
    contrast = np.subtract(var_p, var_m, out=mean_m)
    contrast += c2
    var_p += var_m
    var_p += c2
    numerator *= contrast
    mean_p *= var_p
    numerator /= mean_p
    # The last positions along axis 0 have no full window: zeros fill them up to whole rows.
    return _padded(numerator, n - (WINDOW - 1) * strides[0])


def _window_mean(field: Array, strides: list[int], name: str) -> Array:
    """Return the mean over the window that starts at each position, axis by axis on the flat array."""
    n = len(field)
    pair = linalg.scratch("ssim pair", (n,), field.dtype)
    source = field
    for axis, s in enumerate(strides):
        m = len(source) - (WINDOW - 1) * s
        twos = np.add(source[:-s], source[s:], out=pair[: len(source) - s])
        # Alternate between two buffers, so that no axis writes where it reads; the last one owns the result.
        own = (len(strides) - axis) % 2 == 1
        out = linalg.scratch(name if own else "ssim other", (m,), field.dtype)
        np.add(twos[:m], twos[2 * s : 2 * s + m], out=out)
        out += twos[4 * s : 4 * s + m]
        out += source[6 * s :]
        source = out
    source *= field.dtype.type(1 / WINDOW ** len(strides))
    return source


def _padded(values: Array, n: int) -> Array:
    out = linalg.scratch("ssim padded", (n,), values.dtype)
    out[: len(values)] = values
    out[len(values) :] = 0
    return out
