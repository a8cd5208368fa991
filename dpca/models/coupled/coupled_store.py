"""Stores of `MCA` and `CCA`: the modes, and the map from each field to its anomalies."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labelled, Labels
from dpca.models.base.storable import Storable
from dpca.models.base.store import StoreContents, StoredModel, stored_parameters
from dpca.models.coupled.coupled_fit import FittedField
from dpca.models.coupled.coupling import Coupling, FieldModes
from dpca.models.eof.anomalies import Anomalies
from dpca.models.eof.calendar import Calendar
from dpca.models.eof.fields import MODE, FieldNames
from dpca.models.weights.attribute_weights import field_weights
from dpca.partition.whole import Whole
from dpca.representation.linear import LinearRepresentation
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.labelled import coordinates_of

# Begin the names of all that belongs to each field.
_PREFIXES = ("x_", "y_")
# Arrays of a field: of its map to anomalies, and of its modes.
_OF_FIELD = {
    "analyzed": ("place",),
    "gain": ("feature",),
    "level": ("group", "feature"),
    "slope": ("feature",),
    "given_weights": ("place",),
    "mean": ("feature",),
    "basis": ("basis_component", "feature"),
    "series": ("time", "basis_component"),
}
_OF_MODES = {
    "weights": ("basis_component", "mode"),
    "patterns": ("basis_component", "mode"),
    "covariance": ("basis_component", "column"),
    "squares": ("basis_component", "column"),
}
_SHARED = {"singular_values": ("mode",), "cross": ("x_basis_component", "y_basis_component")}
# Ends the name of the imaginary part of an array.
_IMAGINARY = "_imaginary"


class StoredCoupled(Storable):
    """Base of `CoupledModel` that writes it to a store and reads it back."""

    dim: str
    weights: Any
    hilbert: bool
    gaps: str
    climatology: str | None
    detrend: bool
    n_samples_seen_: int
    _n_given: int
    _coupling: Coupling
    _fields: tuple[FittedField, FittedField]

    @abstractmethod
    def _set_fitted(
        self, coupling: Coupling, fields: tuple[FittedField, FittedField], n_used: int, n_given: int
    ) -> None:
        """Set the attributes of a fit; ``n_used`` counts samples as often as their weights say."""

    @property
    def _labels(self) -> Labels | None:
        """Labels of the samples of the first field."""
        return self._fields[0].given.labels

    @_labels.setter
    def _labels(self, labels: Labels | None) -> None:
        self._fields[0].given = replace(self._fields[0].given, labels=labels)

    def _to_store(self) -> StoreContents:
        coupling, n = self._coupling, self._n_given
        arrays: dict[str, tuple[Any, tuple[str, ...]]] = {}
        kept: dict[str, Any] = {name: (getattr(coupling, name), axes) for name, axes in _SHARED.items()}
        facts: dict[str, Any] = {
            "sample_shape": list(self._fields[0].anomalies.sample_shape),
            "n_components": len(coupling.singular_values),
            "n_samples_seen": self.n_samples_seen_,
            "n_samples": n,
            "weighted": self._fields[0].weighted,
            "parameters": stored_parameters(self),
            "total": coupling.total,
        }
        beside: dict[str, Any] = {}
        given = self.weights if isinstance(self.weights, tuple) else (self.weights,) * 2
        for prefix, one, modes, weights in zip(_PREFIXES, self._fields, (coupling.x, coupling.y), given, strict=True):
            names, along = _names_stored(prefix, one.given, one.anomalies.sample_shape, n)
            beside |= along
            shape, labels = one.anomalies.sample_shape, one.given.labels
            by_array = weights is not None and not isinstance(weights, str)
            own = _arrays_of(one, field_weights(weights, labels, shape) if by_array else None)
            kept |= {prefix + name: (own[name], _prefixed(prefix, axes)) for name, axes in _OF_FIELD.items()}
            kept |= {prefix + name: (getattr(modes, name), _prefixed(prefix, axes)) for name, axes in _OF_MODES.items()}
            calendar = one.calendar
            facts[prefix + "field"] = {
                **names,
                "sample_shape": list(shape),
                "features": len(one.anomalies.places),
                "basis": len(one.basis.components),
                "n_components": len(coupling.singular_values),
                "n_samples_seen": n,
                "dim": one.given.dim,
                "weights": weights if isinstance(weights, str) else None,
                "total": modes.total,
                "retained": one.retained,
                "calendar": {"parts": calendar.parts.tolist(), "origin": calendar.origin, "unit": calendar.unit},
            }
        for name, (values, axes) in kept.items():
            if values is not None:
                arrays[name] = np.ascontiguousarray(values.real), axes
                if np.iscomplexobj(values):
                    arrays[name + _IMAGINARY] = np.ascontiguousarray(values.imag), axes
        facts |= {"arrays": list(arrays), "pair_of_weights": isinstance(self.weights, tuple)}
        coordinates = Coordinates((), beside, {}) if beside else None
        return StoreContents(arrays, facts, self.store_version, beside=coordinates)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, k = stored.facts, stored.n_components
        # Stores from before sample weights do not state these.
        n, weighted = int(facts.get("n_samples", stored.n_samples)), facts.get("weighted") is True
        model = cls(**stored.parameters(cls))
        fields, modes, weights = [], [], []
        inner = {prefix: int(facts[prefix + "field"]["basis"]) for prefix in _PREFIXES}
        shapes = {name: tuple({"mode": k, **_lengths(inner)}[axis] for axis in axes) for name, axes in _SHARED.items()}
        shared = _read(stored, shapes)
        for prefix in _PREFIXES:
            own = facts[prefix + "field"]
            shape, along = tuple(map(int, own["sample_shape"])), own["calendar"]
            parts, d, m = np.array(along["parts"]), int(own["features"]), inner[prefix]
            lengths = {"place": math.prod(shape), "feature": d, "group": len(parts), "time": n, "mode": k}
            lengths |= {"basis_component": m, "column": m}
            tables = {prefix + name: axes for name, axes in {**_OF_FIELD, **_OF_MODES}.items()}
            present = {
                name: tuple(lengths[a] for a in axes) for name, axes in tables.items() if name in facts["arrays"]
            }
            arrays = {name.removeprefix(prefix): values for name, values in _read(stored, present).items()}
            places = np.flatnonzero(arrays["analyzed"])
            if len(places) != d:
                raise ValueError(f"{len(places)} grid points differ from the {d} of its basis")
            given = arrays.get("given_weights")
            weights.append(own["weights"] if given is None else given.reshape(shape))
            modes.append(FieldModes(**{name: arrays[name] for name in _OF_MODES}, total=float(own["total"])))
            calendar = Calendar(
                str(own["dim"]),
                model.climatology,
                bool(model.detrend),
                parts,
                float(along["origin"]),
                float(along["unit"]),
            )
            anomalies = Anomalies(places, shape, *(arrays.get(name) for name in ("gain", "level", "slope")))
            basis = LinearRepresentation(Whole((d,)), arrays["mean"], arrays["basis"])
            names = _names_read(stored, prefix, own, shape, n)
            kept = basis, arrays.get("series"), float(own["retained"])
            fields.append(FittedField(names, calendar, anomalies, *kept, model.gaps == "interpolate", weighted))
        model.weights = tuple(weights) if facts["pair_of_weights"] else weights[0]
        coupling = Coupling(shared["singular_values"], modes[0], modes[1], shared["cross"], float(facts["total"]))
        model._set_fitted(coupling, (fields[0], fields[1]), stored.n_samples, n)
        return model


def _arrays_of(one: FittedField, weights: Array | None) -> dict[str, Any]:
    analyzed = np.zeros(math.prod(one.anomalies.sample_shape), bool)
    analyzed[one.anomalies.places] = True
    own: dict[str, Any] = {name: getattr(one.anomalies, name) for name in ("gain", "level", "slope")}
    own |= {"given_weights": None if weights is None else weights.ravel(), "analyzed": analyzed, "series": one.series}
    return own | {"mean": np.asarray(one.basis.mean), "basis": np.asarray(one.basis.components)}


def _prefixed(prefix: str, axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis if axis in ("time", "mode") else prefix + axis for axis in axes)


def _lengths(inner: Mapping[str, int]) -> dict[str, int]:
    return {prefix + "basis_component": m for prefix, m in inner.items()}


def _read(stored: StoredModel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Return arrays of these shapes, complex if the store has their imaginary parts."""
    parts = {name + _IMAGINARY: shape for name, shape in shapes.items() if name + _IMAGINARY in stored.facts["arrays"]}
    flags = [name for name in shapes if name.endswith("analyzed")]
    found = stored.arrays({**shapes, **parts}, integers=flags)
    complex_ones = {
        name: found[name] + 1j * found.pop(name + _IMAGINARY) for name in shapes if name + _IMAGINARY in parts
    }
    return found | complex_ones


def _names_stored(
    prefix: str, given: FieldNames, shape: tuple[int, ...], n: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of the names of a field, and coordinates: of its times, and of samples of the second field."""
    if given.labels is None:
        return {}, {}
    facts: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    times = coordinates_of(given.series(np.empty((n, 1))).isel({MODE: 0}, drop=True))
    own = given.labels.kept(shape) if prefix == _PREFIXES[1] else None
    for name, labels, along in (
        ("times", None if times is None else Labels(times.dims, times.dims, times, None, {}), times),
        ("labels", given.labels, own),
    ):
        if labels is not None and along is not None:
            changed = replace(labels, along=along).renamed(partial(operator.add, f"{prefix}{name}_"))
            facts[prefix + name] = changed.facts(changed.along)
            arrays |= changed.along.arrays
    return facts, arrays


def _names_read(stored: StoredModel, prefix: str, own: Mapping[str, Any], shape: tuple[int, ...], n: int) -> FieldNames:
    names, inner = FieldNames(None, None, None, str(own["dim"])), stored.within(prefix + "field")
    labels = inner.labels(f"{prefix}labels", shape)
    if labels is not None:
        names = replace(names, labels=labels.renamed(lambda word: word.removeprefix(f"{prefix}labels_")))
    times = inner.labels(f"{prefix}times", (n,))
    if times is not None:
        import xarray  # only stores with coordinates require it

        times = times.renamed(lambda word: word.removeprefix(f"{prefix}times_"))
        samples = xarray.DataArray(np.empty(n), times.coords, times.dims)
        names = replace(names, labelled=Labelled(samples, 1), along=samples.coords.get(names.dim))
    return names
