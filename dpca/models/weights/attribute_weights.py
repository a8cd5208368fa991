"""Weights of the attributes of samples: given values, or the root of the cosine of the latitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels
from dpca.parameters.common import COSLAT
from dpca.storage.arrays.coordinates import is_latitude
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError, one_line

# Slightly beyond the poles, because of rounding in grids of single precision.
_POLE = 90.0001
# Positive weights outside this range may leave that of float32 when samples are multiplied or divided by them.
_LEAST, _MOST = 1e-15, 1e15


def field_weights(weights: Any, labels: Labels | None, sample_shape: tuple[int, ...]) -> Array | None:
    """Return the weights (*sample_shape), float64, of the anomalies at each place; None if all are 1.

    NaN, as fields have it over land, counts as 0; otherwise as `attribute_weights`.
    """
    if weights is None:
        return None
    found = _placed(weights, labels, sample_shape)
    # A view that repeats values, such as those of latitudes, remains one.
    distinct = found[tuple(slice(None) if step else slice(0, 1) for step in found.strides)]
    return np.broadcast_to(_checked(np.where(np.isnan(distinct), 0.0, distinct)), sample_shape)


def attribute_weights(weights: Any, labels: Labels | None, sample_shape: tuple[int, ...]) -> Array:
    """Return the weights (*sample_shape), float64, that the attributes of samples are multiplied by.

    Parameters
    ----------
    weights : "coslat" or array
        An array that numpy can broadcast to a sample, or a ``DataArray`` with some of its dims.
    labels : Labels or None
        Labels of the samples.
    sample_shape : tuple of int

    Raises
    ------
    DataError
        If weights are negative or not finite, positive but too small or too large for float32, have another shape, or
        require latitudes in degrees that do not exist.
    """
    found = _checked(_placed(weights, labels, sample_shape))
    if ((found > 0) & ((found < _LEAST) | (found > _MOST))).any():
        raise DataError(
            f"positive weights range from {found[found > 0].min():g} to {found.max():g}: use weights from {_LEAST:g} "
            f"to {_MOST:g}, or 0"
        )
    return found


def standardized(weights: Array | None, variance: Array, variables: Array | None, out: Array | None = None) -> Array:
    """Return the factors (d,) that standardize attributes of a variance (d,), and multiply them by weights.

    ``variables`` (d,) are the numbers of variables: each has the total variance 1 with its weights. None: each
    attribute has the variance 1 before weights. Attributes of variance 0 have the factor 0. ``out`` (d,), float64, may
    be ``variance``.
    """
    if variables is not None:
        variance = np.bincount(variables, variance if weights is None else variance * weights**2)[variables]
    deviation: Array = np.sqrt(variance, out=out)
    return np.divide(1.0 if weights is None else weights, deviation, out=deviation, where=deviation > 0)


def check_weights_of(model: Any, given: Any) -> None:
    """Raise `DataError` if the weights of an unfitted model do not fit a stack or a reader, before it is read.

    The shape of encoded images is not known then.
    """
    if not getattr(model, "weighs_attributes", False) or model.weights is None:
        return
    if given.sample_shape or isinstance(model.weights, str):
        attribute_weights(model.weights, Labels.of_source(given), tuple(given.sample_shape))


def _placed(weights: Any, labels: Labels | None, sample_shape: tuple[int, ...]) -> Array:
    """Return weights with the shape of a sample, before checks of their values."""
    if isinstance(weights, str):
        if weights != COSLAT:
            raise DataError(f"weights are {weights!r}: use {COSLAT!r}, an array, or None")
        weights = _root_of_cosine(labels)
    if is_labelled(weights):
        weights = _in_order(weights, labels, sample_shape)
    try:
        values = np.asarray(weights)
    except ValueError as error:  # rows of several lengths
        raise DataError(f"weights are not an array ({one_line(error)}): use one weight for each place") from error
    if values.dtype.kind not in "biuf":
        raise DataError(f"weights hold {values.dtype} values: use real numbers")
    try:
        return np.broadcast_to(values.astype(np.float64, copy=False), sample_shape)
    except ValueError as error:
        raise DataError(
            f"weights have shape {values.shape}, but a sample has {sample_shape}: use one weight for each place"
        ) from error


def _checked(weights: Array) -> Array:
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise DataError(f"weights range from {weights.min():g} to {weights.max():g}: use finite weights of at least 0")
    if not weights.any():
        raise DataError("weights are 0 everywhere: use positive weights at some places")
    return weights


def _root_of_cosine(labels: Labels | None) -> Any:
    """Return sqrt(cos(latitude)) as a ``DataArray`` (North, Bell, Cahalan & Moeng 1982, section 2)."""
    coords = {} if labels is None or labels.coords is None else dict(labels.coords.items())
    found = [c for name, c in coords.items() if is_latitude(str(name), c.attrs)]
    if not found:
        raise DataError(
            f"weights are {COSLAT!r}, but the samples have no latitudes: use an xarray.DataArray with a coordinate "
            f"'lat', or an array of weights"
        )
    lat = found[0]
    units, most = str(lat.attrs.get("units", "degrees")), float(np.abs(lat).max())
    # Without units, a maximum near pi / 2 means radians. A strip of degrees along the equator requires units.
    radians = "units" not in lat.attrs and 1.2 < most <= np.pi / 2 + 1e-6
    if not units.lower().startswith("deg") or not most <= _POLE or radians:
        raise DataError(
            f"the latitudes {lat.name!r} go to {most:g} in {units if 'units' in lat.attrs else 'no units'}: use "
            f"degrees (attribute units='degrees_north')"
        )
    return np.sqrt(np.cos(np.deg2rad(lat)).clip(0, 1))


def _in_order(weights: Any, labels: Labels | None, sample_shape: tuple[int, ...]) -> Any:
    import xarray  # the weights are an array of xarray, so it is installed

    dims = () if labels is None else labels.dims
    if labels is None or not set(weights.dims) <= set(dims):
        raise DataError(f"weights have the dims {weights.dims}, but a sample has {dims}: use some of these dims")
    grid = xarray.DataArray(np.broadcast_to(1.0, sample_shape), labels.coords, dims)
    try:
        return xarray.align(grid, weights, join="exact", copy=False)[1].broadcast_like(grid).transpose(*dims)
    except ValueError as error:
        raise DataError(
            f"weights of {dict(weights.sizes)} have other coordinates than samples of {dict(grid.sizes)}: use weights "
            f"on the same grid"
        ) from error
