"""Results of modes of two fields: patterns, scores and fractions, with the names of the fields."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.coupled.coupled_fit import FittedField
from dpca.models.coupled.coupling import Coupling, FieldModes
from dpca.models.eof.fields import Field, on_grid, series_given
from dpca.models.eof.projection import scores_of
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError


class CoupledResults:
    """Base of the modes of two fields, rotated or not."""

    _coupling: Coupling
    _fields: tuple[FittedField, FittedField]

    @property
    def singular_values_(self) -> Any:
        """Covariance (k,) of the scores of both fields for `MCA`, and what it is for other modes: see there."""
        return self._by_mode(self._coupling.singular_values, "singular_values")

    @property
    def squared_covariance_fraction_(self) -> Any:
        """Share (k,) of the squared covariance of both fields that each mode explains (Swenson 2015, equation 15)."""
        return self._by_mode(self._coupling.squared_covariance_fractions(), "squared_covariance_fraction")

    @property
    def covariance_fraction_(self) -> Any:
        """Share (k,) of the singular values of the modes (Cheng & Dunkerton 1995); it depends on their number."""
        values = self._coupling.singular_values
        return self._by_mode(values / max(float(values.sum()), 1e-300), "covariance_fraction")

    @property
    def correlation_(self) -> Any:
        """Correlation (k,) of the scores of both fields."""
        return self._by_mode(self._coupling.correlations(), "correlation")

    @property
    def explained_variance_ratio_(self) -> tuple[Any, Any]:
        """Share (k,) of the variance of each field that its scores explain."""
        x, y = (self._by_mode(side.explained(), "explained_variance_ratio") for side in self._sides)
        return x, y

    def patterns(self) -> tuple[Any, Any]:
        """Return the patterns of both fields as maps (n_modes, *sample_shape), NaN at grid points without data.

        Patterns of `MCA` have unit length. The field is the sum of scores times (the conjugate of) patterns. They are
        patterns of weighted anomalies, the components of xeofs.

        Returns
        -------
        tuple of two xarray.DataArray (mode, ...), or arrays
            With the coordinates of each field if its dims had names. Modes are numbered from 1. float64, or complex128
            with ``hilbert``.
        """
        x, y = (
            on_grid(_placed(one, self._maps(i)), one.given.labels, "patterns") for i, one in enumerate(self._fitted())
        )
        return x, y

    def scores(self, *, normalized: bool = False) -> tuple[Any, Any]:
        """Return the scores (n_samples, n_modes) of the samples of the fit in both fields.

        Parameters
        ----------
        normalized : bool
            Divide by their length over all samples.

        Returns
        -------
        tuple of two xarray.DataArray (dim, mode), or arrays
            After a fit by the solver "covariance", or with ``sample_weight``, the first call reads the samples. NaN
            for samples of weight 0 that miss some values.
        """
        found = []
        for one, side in zip(self._fitted(), self._sides, strict=True):
            values = self._series(one) @ side.weights
            if normalized:
                values = values / np.sqrt(np.nansum(np.abs(values) ** 2, axis=0))
            found.append(one.given.series(values, name="scores"))
        return found[0], found[1]

    def transform(self, X: Any = None, Y: Any = None, *, key: str | None = None) -> Any:
        """Return the scores (n_samples, n_modes) of any samples of one field, or of both.

        Mean, climatology, trend, standard deviation, weights and grid points with data are those of the fit.

        Parameters
        ----------
        X, Y, key
            As in `fit`, on the same grids; one of them, or both.

        Returns
        -------
        xarray.DataArray (dim, mode) or array, or a tuple of two if both are given
            Lazy for Dask arrays; NaN for samples without values.

        Raises
        ------
        DataError
            If none is given, the grid differs, or the modes are complex: the analytic signal requires all samples.
        """
        fields, found = self._fitted(), []
        if X is None and Y is None:
            raise DataError("X and Y are None: give the samples of one field, or of both")
        if np.iscomplexobj(self._coupling.x.weights):
            raise DataError("modes with hilbert=True require the whole record: use scores()")
        for one, side, samples in zip(fields, self._sides, (X, Y), strict=True):
            if samples is not None:
                names = one.given.labels if is_labelled(samples) else None
                given = Field.of(samples, one.given.dim, key, names)
                if given.source.shape[1:] != one.anomalies.sample_shape:
                    raise DataError(
                        f"samples have shape {given.source.shape[1:]}: give {one.anomalies.sample_shape}, as in the fit"
                    )
                one.calendar.check(given.along, one.given.along, always=True)
                rows = _coordinates(one, given)
                found.append(given.series(rows @ side.weights.astype(rows.dtype), name="scores"))
        return found[0] if len(found) == 1 else tuple(found)

    def inverse_transform(self, X: Any = None, Y: Any = None) -> Any:
        """Return the fields of scores, in their units, NaN at grid points without data.

        Parameters
        ----------
        X, Y : DataArray (dim, mode) or array (m, k), optional
            Scores of each field, as returned by `scores` or `transform`, of the leading k modes; one of them, or both.
            An array without coordinates must have all times of the fit if there is a climatology or trend.

        Returns
        -------
        xarray.DataArray (dim, ...) or array, or a tuple of two if both are given
            In memory. Of analytic signals, the real part.
        """
        if X is None and Y is None:
            raise DataError("X and Y are None: give the scores of one field, or of both")
        found = [
            self._reconstructed(i, one, scores)
            for i, (one, scores) in enumerate(zip(self._fitted(), (X, Y), strict=True))
            if scores is not None
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def predict(self, X: Any, *, key: str | None = None) -> Any:
        """Return the scores of the second field that linear regression predicts from samples of the first one.

        Parameters
        ----------
        X, key
            As in `transform`.

        Returns
        -------
        xarray.DataArray (dim, mode), or array
            `inverse_transform` makes a field of them, as its argument ``Y``.
        """
        scores, pair = self.transform(X, key=key), self._coupling
        slopes = pair.x.weights.T @ pair.cross @ pair.y.weights / pair.x.variances[:, None]
        values = (scores.data if is_labelled(scores) else scores) @ slopes.astype(scores.dtype)
        return scores.copy(data=values) if is_labelled(scores) else values

    # -- internals

    @property
    def _sides(self) -> tuple[FieldModes, FieldModes]:
        return self._coupling.x, self._coupling.y

    def _fitted(self) -> tuple[FittedField, FittedField]:
        return self._fields

    def _by_mode(self, values: Array, name: str) -> Any:
        given = [one.given for one in self._fitted()]
        return next((one for one in given if one.labels is not None), given[0]).by_mode(values, name)

    def _maps(self, i: int) -> Array:
        """Return the patterns (k, d) of a field at its grid points with data."""
        maps: Array = self._sides[i].patterns.T @ np.asarray(self._fields[i].basis.components, np.float64)
        return maps

    def _series(self, one: FittedField) -> Array:
        """Return the coordinates (n, m) of the samples of the fit. The first call after some fits reads them."""
        if one.series is None:
            if not isinstance(one.given, Field):
                raise DataError("this store has no scores: call scores() before save(), or transform() the samples")
            found = _coordinates(one, one.given, skip_gaps=one.weighted)
            found = np.asarray(found.compute() if isinstance(found, da.Array) else found, np.float64)
            one.series = found if one.weighted else found - found.mean(axis=0)
        return one.series

    def _reconstructed(self, i: int, one: FittedField, scores: Any) -> Any:
        values = series_given(scores, one.given.dim, 1)
        k = values.shape[1]
        if k > (most := self._sides[i].patterns.shape[1]):
            raise DataError(f"scores have {k} modes: give at most {most}")
        along = scores.coords.get(one.given.dim) if is_labelled(scores) else one.given.along
        groups, trend = one.calendar.given(along, values, one.given.along)
        rows = (values @ self._maps(i)[:k].conj()).real + np.asarray(one.basis.mean)
        return one.given.field(one.anomalies.placed(one.anomalies.back(rows, groups, trend)), scores)


def _placed(one: FittedField, maps: Array) -> Array:
    if not np.iscomplexobj(maps):
        return one.anomalies.placed(maps)
    found: Array = one.anomalies.placed(maps.real) + 1j * one.anomalies.placed(maps.imag)
    return found


def _coordinates(one: FittedField, given: Field, *, skip_gaps: bool = False) -> Any:
    parts = given, one.calendar, one.anomalies, one.basis
    return scores_of(*parts, interpolates=one.interpolates, skip_gaps=skip_gaps)


def oriented(results: CoupledResults) -> Coupling:
    """Return the modes with signs, or phases: the largest entry of each pattern of the first field is positive."""
    coupling, maps = results._coupling, results._maps(0)
    largest = maps[np.arange(len(maps)), np.abs(maps).argmax(axis=1)]
    sizes = np.abs(largest)
    phases = np.divide(largest.conj(), sizes, out=np.ones_like(largest), where=sizes > 0)
    return coupling.turned(np.diag(phases), np.diag(phases), coupling.singular_values)
