"""Several variables that are analyzed together: their attributes side by side, as one flattened sample."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.variables import check_counts, check_keys
from dpca.kernels.algebra.types import Array
from dpca.models.base.labelled import Labels
from dpca.models.base.store import StoredModel
from dpca.models.eof.fields import Field, FieldNames
from dpca.storage.arrays.labelled import is_labelled, labelled_array
from dpca.storage.errors import DataError, one_line
from dpca.storage.stack import VARIABLES

# The forms in which variables are given.
_FORMS = ("list", "tuple", "dict", "Dataset")
# How the names of variables without names begin.
_NUMBERED = "variable "


@dataclass(frozen=True, eq=False)
class VariableNames(FieldNames):
    """The names of several variables; ``labelled``, ``along`` and ``dim`` are those of the first one with names.

    Attributes
    ----------
    variables : tuple of FieldNames
    shapes : tuple of tuple of int
        Shape of a sample of each variable.
    keys : tuple of str
        Names of the variables, in errors; and in results, if they were given as a ``Dataset`` or a dict.
    form : {"list", "tuple", "dict", "Dataset"}
        How they were given, and come back.
    """

    variables: tuple[FieldNames, ...]
    shapes: tuple[tuple[int, ...], ...]
    keys: tuple[str, ...]
    form: str

    @property
    def named(self) -> bool:
        """Whether the dims of a variable have names."""
        return any(one.named for one in self.variables)

    def variable_of(self, places: Array) -> Array:
        """Return the number of the variable at each of some places of a flattened sample."""
        return np.searchsorted([*itertools.accumulate(map(math.prod, self.shapes))], places, side="right")

    def weights(self, given: Any, sample_shape: tuple[int, ...]) -> Array | None:
        """Return the weights of the anomalies at each place: given for each variable, or a name for all of them.

        Raises
        ------
        DataError
            If they are not given for each variable, or as `field_weights`.
        """
        if given is None:
            return None
        each = self._each(given)
        rows = []
        for key, one, weights, shape in zip(self.keys, self.variables, each, self.shapes, strict=True):
            try:
                found = one.weights(weights, shape)
            except DataError as error:
                raise DataError(f"{_called(key)}: {error}") from error
            rows.append(np.ones(math.prod(shape)) if found is None else found.ravel())
        return np.concatenate(rows)

    def _each(self, given: Any) -> Sequence[Any]:
        if isinstance(given, str):
            return [given] * len(self.keys)
        if isinstance(given, Mapping) or (is_labelled(given) and hasattr(given, "data_vars")):
            found = {str(key): given[key] for key in given}
            return [found[key] for key in _in_order(found, self.keys, "weights")]
        if isinstance(given, list | tuple) and len(given) == len(self.keys):
            return given
        raise DataError(
            f"weights are {_described(given)}, but there are the variables {', '.join(self.keys)}: give a list or a "
            f"dict with the weights of each, numbers or arrays, or 'coslat'"
        )

    def maps(self, values: Array, name: str, attributes: Callable[[Labels], dict[str, Any]]) -> Any:
        """Return the maps (k, *sample_shape) of each variable, in the form in which the variables were given."""
        named = self.form == "Dataset"
        pairs = zip(self.variables, self.keys, self.split(values), strict=True)
        return self.formed(one.maps(part, key if named else name, attributes) for one, key, part in pairs)

    def field(self, values: Array, pcs: Any) -> Any:
        """Return the samples (n, *sample_shape) of each variable, in the form in which the variables were given."""
        pairs = zip(self.variables, self.split(values), strict=True)
        return self.formed(one.field(part, pcs) for one, part in pairs)

    def merged(self, maps: Any) -> list[Any]:
        """Return results of `maps` as parts of one ``Dataset``, each by the name of its variable."""
        if self.form == "Dataset":
            return [maps]
        parts = maps.values() if isinstance(maps, dict) else maps
        if lacking := [key for key, one in zip(self.keys, self.variables, strict=True) if not one.named]:
            raise DataError(f"{lacking[0]} had no names of dims: fit an xarray.DataArray")
        return [part.to_dataset(name=key) for key, part in zip(self.keys, parts, strict=True)]

    def split(self, values: Any) -> list[Any]:
        """Return the values (n, *sample_shape) of each variable, from rows (n, attributes of all)."""
        ends = itertools.accumulate(map(math.prod, self.shapes), initial=0)
        columns = zip(itertools.pairwise(ends), self.shapes, strict=True)
        return [values[:, start:stop].reshape(len(values), *shape) for (start, stop), shape in columns]

    def formed(self, parts: Iterable[Any]) -> Any:
        """Return a part of each variable in the form in which they were given."""
        if self.form == "list":
            return [*parts]
        if self.form == "tuple":
            return tuple(parts)
        found = dict(zip(self.keys, parts, strict=True))
        if self.form == "dict":
            return found
        import xarray  # the variables were a Dataset, so it is installed

        return xarray.Dataset(found)


@dataclass(frozen=True, eq=False)
class SeveralVariables(VariableNames, Field):
    """Samples of several variables along one dim; the source has all of them side by side."""

    source: JoinedSource

    def bare(self) -> VariableNames:
        """Return the names without the samples."""
        variables = tuple(FieldNames(one.labels, None, None, self.dim) for one in self.variables)
        return VariableNames(None, None, None, self.dim, variables, self.shapes, self.keys, self.form)


def _called(name: str) -> str:
    """Return what errors call a variable."""
    return name if name.startswith(_NUMBERED) else f"{_NUMBERED}{name}"


def field_given(X: Any, dim: str, key: Any = None, names: FieldNames | None = None, missing: Any = None) -> Field:
    """Return the field, or the variables, in any input of `EOF.fit`; ``names`` are those of a fitted model.

    ``missing`` marks missing values, see `Field.of`.

    Raises
    ------
    DataError
        As `Field.of` and `variables_given`.
    """
    if (several := variables_given(X, dim, key, names, missing)) is not None:
        return several
    return Field.of(X, dim, key, names.labels if names is not None and is_labelled(X) else None, missing)


def variables_given(
    X: Any, dim: str, key: Any = None, names: FieldNames | None = None, missing: Any = None
) -> SeveralVariables | None:
    """Return several variables as one field, None if a single one is given; the parameters are those of `field_given`.

    Raises
    ------
    DataError
        If variables differ in their samples, or are not those of the model.
    """
    found = _several(X, dim, key)
    known = names if isinstance(names, VariableNames) else None
    if found is None:
        if known is not None:
            raise DataError(f"the model has the variables {', '.join(known.keys)}: give all of them, as in the fit")
        return None
    form, given = found
    if names is not None and known is None:
        raise DataError(f"the model has one variable, and {len(given)} variables are given: give one")
    if known is not None:
        if form in ("list", "tuple"):
            given = dict(zip(known.keys, given.values(), strict=False)) if len(given) == len(known.keys) else given
        given = {key: given[key] for key in _in_order(given, known.keys, "X")}
    labels = [one.labels for one in known.variables] if known is not None else [None] * len(given)
    variables: list[Field] = []
    for (name, (x, own)), own_labels in zip(given.items(), labels, strict=True):
        try:
            variables.append(Field.of(x, dim, own, own_labels if is_labelled(x) else None, missing))
        except DataError as error:
            raise DataError(f"{_called(name)}: {error}") from error
    _check_samples(variables, [*given])
    lead = next((one for one in variables if one.named), variables[0])
    shapes = tuple(tuple(one.source.shape[1:]) for one in variables)
    if known is not None and shapes != known.shapes:
        pairs = zip(given, shapes, known.shapes, strict=True)
        name, shape, fitted = next((name, a, b) for name, a, b in pairs if a != b)
        raise DataError(f"samples of {name} have shape {shape}: give {fitted}, as in the fit")
    bare = tuple(FieldNames(one.labels, one.labelled, one.along, one.dim) for one in variables)
    source = JoinedSource(*(one.source for one in variables))
    source.name = " and ".join(given)
    return SeveralVariables(
        None, lead.labelled, lead.along, lead.dim, source, variables=bare, shapes=shapes, keys=(*given,), form=form
    )


def variables_stored(names: VariableNames) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts of variables in a store, and their coordinates by name."""
    own = {"form": names.form, "keys": list(names.keys), "shapes": [*map(list, names.shapes)]}
    facts: dict[str, Any] = {VARIABLES: own}
    arrays: dict[str, Any] = {}
    for i, (one, shape) in enumerate(zip(names.variables, names.shapes, strict=True)):
        along = None if one.labels is None else one.labels.kept(shape)
        if one.labels is not None and along is not None:
            changed = replace(one.labels, along=along).renamed(partial(operator.add, _prefix(i)))
            facts[_prefix(i)] = changed.facts(changed.along)
            arrays |= changed.along.arrays
    return facts, arrays


def variables_read(stored: StoredModel, names: FieldNames) -> FieldNames:
    """Return the names of the variables in a store, with the samples of ``names``; or these, if there is one field."""
    if VARIABLES not in stored.facts:
        return names
    own = stored.facts[VARIABLES]
    shapes = tuple(tuple(map(int, shape)) for shape in own["shapes"])
    keys, form = tuple(map(str, own["keys"])), str(own["form"])
    if sum(map(math.prod, shapes)) != math.prod(stored.sample_shape) or len(keys) != len(shapes) or form not in _FORMS:
        raise ValueError(f"its variables {keys} of {shapes} do not fit samples of {stored.sample_shape}")
    variables = []
    for i, shape in enumerate(shapes):
        labels, prefix = stored.labels(_prefix(i), shape), _prefix(i)
        if labels is not None:
            labels = labels.renamed(partial(_without, prefix))
        variables.append(replace(names, labels=labels))
    return VariableNames(
        None, names.labelled, names.along, names.dim, tuple(variables), shapes=shapes, keys=keys, form=form
    )


def merged_exactly(parts: Sequence[Any], combine_attrs: Any) -> Any:
    """Return an ``xarray.Dataset`` of parts with equal coordinates; ``combine_attrs`` as in ``xarray.merge``.

    Raises
    ------
    DataError
        If coordinates along a dim differ.
    """
    import xarray

    try:
        return xarray.merge(parts, join="exact", combine_attrs=combine_attrs)
    except ValueError as error:
        raise DataError(f"variables have different coordinates along a dim, rename it ({one_line(error)})") from error


def _prefix(i: int) -> str:
    return f"variable_{i}_"


def _without(prefix: str, word: str) -> str:
    return word.removeprefix(prefix)


def _several(X: Any, dim: str, key: Any) -> tuple[str, dict[str, tuple[Any, str | None]]] | None:
    """Return the form of several variables, and each with its key by its name; None for a single field."""
    if isinstance(key, list | tuple):
        check_keys(key)
        if is_labelled(X):
            return "Dataset", {str(one): (labelled_array(X, one), None) for one in key}
        return "dict", {str(one): (X, str(one)) for one in key}
    if key is not None:
        return None
    if is_labelled(X):
        if not hasattr(X, "data_vars") or len(X.data_vars) < 2:
            return None
        for name, x in X.data_vars.items():
            if dim not in x.dims:
                raise DataError(
                    f"the variable {name!r} of the Dataset has no dim {dim!r}, only {x.dims}: select those that have "
                    f"it, key=[...]"
                )
        return "Dataset", {str(name): (x, None) for name, x in X.data_vars.items()}
    if isinstance(X, Mapping) and not hasattr(X, "shape") and X:  # sparse arrays of keys have a shape
        return "dict", {str(name): (x, None) for name, x in X.items()}
    if isinstance(X, list | tuple) and X and all(_is_variable(x) for x in X):
        names = [str(getattr(x, "name", None) or f"{_NUMBERED}{i}") for i, x in enumerate(X)]
        unique = names if len({*names}) == len(names) else [f"{_NUMBERED}{i}" for i in range(len(X))]
        return type(X).__name__, {name: (x, None) for name, x in zip(unique, X, strict=True)}
    return None


def _is_variable(x: Any) -> bool:
    return hasattr(x, "shape") and len(x.shape) > 1


def _check_samples(variables: Sequence[Field], keys: Sequence[str]) -> None:
    """Reject variables with other samples than the first one."""
    check_counts([one.source for one in variables], keys)
    first = variables[0]
    for one, key in zip(variables[1:], keys[1:], strict=True):
        times = [one.along for one in (first, one) if one.along is not None and one.dim in one.along.coords]
        if len(times) == 2 and not times[0].equals(times[1]):
            raise DataError(
                f"{keys[0]} and {key} have different coordinates along {first.dim!r}: align them first, "
                f"xarray.align(..., join='inner')"
            )


def _in_order(given: Mapping[str, Any], keys: Sequence[str], what: str) -> Sequence[str]:
    """Return the names of all variables of a model, if exactly these are given."""
    if {*given} != {*keys}:
        raise DataError(f"{what} has {', '.join(given)}, but the variables are {', '.join(keys)}: give each of them")
    return keys


def _described(given: Any) -> str:
    return f"a {type(given).__name__} of {len(given)}" if hasattr(given, "__len__") else repr(given)
