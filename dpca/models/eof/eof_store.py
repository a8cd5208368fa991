"""Stores of `EOF`: the model of the anomalies, and the map from a field to anomalies."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labelled, Labels
from dpca.models.base.linear_model import LinearModel
from dpca.models.base.storable import Storable
from dpca.models.base.store import StoreContents, StoredModel, stored_parameters
from dpca.models.eof.anomalies import Anomalies
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.eof_fit import FittedAnomalies, gap_expectation
from dpca.models.eof.fields import MODE, FieldNames
from dpca.models.eof.gaps import Expected
from dpca.models.eof.on_grid import GridAnomalies
from dpca.models.eof.variables import VariableNames, variables_read, variables_stored
from dpca.models.linear.pca import PCA
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.labelled import coordinates_of

# Arrays in addition to those of the model of the anomalies; the features of that model are the grid points with data.
_ARRAYS = {
    "analyzed": ("place",),
    "gain": ("feature",),
    "level": ("group", "feature"),
    "slope": ("feature",),
    "weights": ("place",),
    "pcs": ("time", "component"),
}


class StoredEOF(Storable):
    """Base of `EOF` that writes it to a store and reads it back."""

    climatology: str | None
    detrend: bool
    weights: Any
    model_: LinearModel
    _given: FieldNames
    _calendar: Calendar
    _anomalies: Anomalies | GridAnomalies
    _expected: Expected | None
    _n_given: int
    _pcs: Array | None
    _weighted: bool

    @abstractmethod
    def _set_fitted(
        self, found: FittedAnomalies, given: FieldNames, calendar: Calendar, n: int, pcs: Array | None = None
    ) -> None:
        """Set the attributes of a fit to ``n`` samples."""

    @property
    def _labels(self) -> Labels | None:
        return self._given.labels

    @_labels.setter
    def _labels(self, labels: Labels | None) -> None:
        self._given = replace(self._given, labels=labels)

    def _to_store(self) -> StoreContents:
        names, calendar, n, weights = self._given, self._calendar, self._n_given, self.weights
        if weights is not None and not isinstance(weights, str):
            weights = names.weights(weights, self.sample_shape_)
        gain, level, slope = (getattr(self._anomalies, name) for name in ("gain", "level", "slope"))
        own: dict[str, Any] = {"gain": None if gain is None else gain.ravel()}
        own |= {"level": None if level is None else level.reshape(len(level), -1)}
        own |= {"slope": None if slope is None else slope.ravel()}
        own |= {"weights": weights.ravel() if isinstance(weights, np.ndarray) else None}
        own |= {"analyzed": self._anomalies.analyzed, "pcs": self._pcs}
        arrays = {name: (values, _ARRAYS[name]) for name, values in own.items() if values is not None}
        inner = self.model_._to_store()
        facts: dict[str, Any] = {
            "sample_shape": list(self.sample_shape_),
            "n_components": self.model_.n_components_,
            "n_samples_seen": self.model_.n_samples_seen_,
            "n_samples": n,
            "parameters": stored_parameters(self),
            "kept": list(arrays),
            "model": {"kind": self.model_.store_kind, **inner.facts},
            "fills": self._expected is not None,
            "weighted": self._weighted,
            "dim": names.dim,
            "calendar": {"parts": calendar.parts.tolist(), "origin": calendar.origin, "unit": calendar.unit},
        }
        if isinstance(weights, str):
            facts["parameters"]["weights"] = weights
        times = None
        if names.labels is not None:
            times = coordinates_of(names.series(np.empty((n, 1))).isel({MODE: 0}, drop=True))
        if times is not None:
            facts["times"] = Labels(times.dims, times.dims, times, None, {}).facts(times)
        beside = times
        if isinstance(names, VariableNames):
            stored, along = variables_stored(names)
            facts |= stored
            along |= {} if times is None else times.arrays
            beside = Coordinates((), along, {})
        return StoreContents({**inner.arrays, **arrays}, facts, self.store_version, beside=beside)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, inner = stored.facts, stored.within("model")
        eof = cls(**stored.parameters(cls))
        model = {kind.store_kind: kind for kind in (PCA, StreamingPCA)}[inner.facts["kind"]]._from_store(inner)
        if stored.n_components != model.n_components_ or stored.n_samples != model.n_samples_seen_:
            raise ValueError(f"{stored.n_components} modes of {stored.n_samples} samples differ from the inner model")
        along, n = facts["calendar"], int(facts["n_samples"])
        weighted = facts.get("weighted") is True  # stores from before sample weights do not state it
        if n < stored.n_samples and not weighted:
            raise ValueError(f"{stored.n_samples} samples with data are more than {n} samples")
        parts = np.array(along["parts"])
        lengths = {"feature": model.n_features_in_, "component": model.n_components_, "time": n}
        lengths |= {"group": len(parts), "place": math.prod(stored.sample_shape)}
        shapes = {name: tuple(lengths[axis] for axis in _ARRAYS[name]) for name in facts["kept"]}
        arrays = stored.arrays(shapes, integers=("analyzed",))
        anomalies = _anomalies_read(arrays, stored.sample_shape, model.sample_shape_)
        calendar = Calendar(
            str(facts["dim"]), eof.climatology, bool(eof.detrend), parts, float(along["origin"]), float(along["unit"])
        )
        names, times = FieldNames(None, None, None, calendar.dim), stored.labels("times", (n,))
        if times is not None:
            import xarray  # only stores with coordinates require it

            samples = xarray.DataArray(np.empty(n), times.coords, times.dims)
            names = replace(names, labelled=Labelled(samples, 1), along=samples.coords.get(calendar.dim))
        names = variables_read(stored, names)
        if "weights" in arrays:
            weights = arrays["weights"].reshape(stored.sample_shape)
            eof.weights = [w[0] for w in names.split(weights[None])] if isinstance(names, VariableNames) else weights
        expected = gap_expectation(model) if facts["fills"] else None
        found = FittedAnomalies(model, anomalies, stored.n_samples, expected, weighted=weighted)
        eof._set_fitted(found, names, calendar, n, arrays.get("pcs"))
        return eof


def _anomalies_read(
    arrays: dict[str, Array], shape: tuple[int, ...], of_model: tuple[int, ...]
) -> Anomalies | GridAnomalies:
    """Return the anomalies from the arrays of a store, at all grid points if the model has the shape of samples."""
    gain, level, slope = (arrays.get(name) for name in ("gain", "level", "slope"))
    if of_model == shape:
        return GridAnomalies.of_rows(arrays["analyzed"].astype(bool), shape, gain, level, slope)
    if len(places := np.flatnonzero(arrays["analyzed"])) != math.prod(of_model):
        raise ValueError(f"{len(places)} grid points differ from the {math.prod(of_model)} of the inner model")
    return Anomalies(places, shape, gain, level, slope)
