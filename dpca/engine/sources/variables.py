"""Several variables of one file or Zarr group, read in place side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import zarr

from dpca.engine.sources.joined import JoinedSource
from dpca.engine.sources.source import DerivedStack, Source, ZarrSource, as_source, opened
from dpca.storage.arrays.coordinates import Coordinates
from dpca.storage.arrays.layout import SAMPLE, axes_for
from dpca.storage.arrays.reading import open_node
from dpca.storage.errors import DataError
from dpca.storage.readers import open_reader
from dpca.storage.readers.opening import is_zarr
from dpca.storage.stack import VARIABLES, Stack
from dpca.storage.transaction.workspace import fingerprint_of


@dataclass(frozen=True, eq=False)
class VariableStack(DerivedStack):
    """Several variables of a file or a Zarr group, as the input of a job: a sample has the attributes of all.

    Attributes
    ----------
    keys : tuple of str
        Names of the variables.
    shapes : tuple of tuple of int
        Shape of a sample of each variable.
    data_range : (float, float)
        All values of the dtype, since variables have different units.
    """

    keys: tuple[str, ...] = field(kw_only=True)
    shapes: tuple[tuple[int, ...], ...] = field(kw_only=True)
    along: Coordinates | None = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, path: str | os.PathLike[str], keys: Sequence[str]) -> VariableStack:
        """Open variables. Only metadata is read.

        Raises
        ------
        DataError
            If a variable is missing or given twice, or numbers of samples differ.
        """
        check_keys(keys)
        where = os.fspath(path)
        group = open_node(where) if is_zarr(where) else None
        if isinstance(group, zarr.Group) and (lacking := [key for key in keys if key not in group]):
            listed = ", ".join(sorted(name for name, _ in group.arrays())) or "none"
            raise DataError(f"'{where}' has no array {lacking[0]!r}: its arrays are {listed}")
        found = [opened(where, key, gaps=True) for key in keys]
        sources = [as_source(x) for x in found]
        check_counts(sources, keys)
        rows: Any = JoinedSource(*sources)
        rows.name, rows.with_gaps = f"{where} ({', '.join(keys)})", False
        limits = np.iinfo(rows.dtype) if rows.dtype.kind in "ui" else np.finfo(rows.dtype)
        along = next((x.coordinates for x in found if x.coordinates is not None), None)
        return cls(
            path=where,
            array_path=where,
            samples=rows,
            axes=(SAMPLE, *axes_for(rows.shape[1:])),
            data_range=(float(limits.min), float(limits.max)),
            source={"kind": VARIABLES, "name": os.path.basename(where.rstrip("/")), "count": rows.shape[0]},
            keys=tuple(keys),
            shapes=tuple(tuple(source.shape[1:]) for source in sources),
            along=along,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Hash that changes with the content of a variable."""
        found = [opened(self.path, key, gaps=True) for key in self.keys]
        each = (
            x.fingerprint if isinstance(x, Stack) else open_reader(self.path, key=key).fingerprint()
            for x, key in zip(found, self.keys, strict=True)
        )
        return fingerprint_of(VARIABLES, self.keys, *each)

    @cached_property
    def coordinates(self) -> Coordinates | None:
        """Coordinates of the samples, those of the first variable that has some."""
        if self.along is None:
            return None
        of_samples = {name: one for name, one in self.along.arrays.items() if one.dims == self.along.dims[:1]}
        own = replace(self.along, dims=(self.along.dims[0], *self.axes[1:]), arrays=of_samples, attributes={})
        return own.arranged(range(2), self.axes[1:])

    def opened(self) -> JoinedSource:
        """Return the source of all variables side by side."""
        found: Any = self.samples
        assert isinstance(found, JoinedSource)
        return found

    @property
    def in_tasks(self) -> bool:
        """Whether tasks on other machines can read the variables themselves: those of Zarr stores."""
        return all(isinstance(source, ZarrSource) for source in self.opened().sources)


def check_keys(keys: Sequence[Any]) -> None:
    """Raise `DataError` if a variable is given twice."""
    if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
        raise DataError(f"the variable {twice[0]!r} is given twice: give each variable once")


def check_counts(sources: Sequence[Source], keys: Sequence[str]) -> None:
    """Raise `DataError` if variables have different numbers of samples."""
    n = sources[0].shape[0]
    for source, key in zip(sources, keys, strict=True):
        if (m := source.shape[0]) != n:
            raise DataError(f"{keys[0]} has {n:,} samples and {key} {m:,}: give variables with the same samples")
