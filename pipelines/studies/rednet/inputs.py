"""Inputs of classifiers: photographs as 25 x 25 values of several channels, by components of cells or downsampled."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from PIL import Image

from dpca import CellPCA
from dpca.jobs import fit_store
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.rednet.splits import TASKS, known_well, people
from dpca.rules.base.orthonormal import orthonormalize
from dpca.storage.disk import atomic_write_bytes
from dpca.storage.errors import StoreError, one_line
from dpca.storage.images import decode
from dpca.storage.readers import open_reader

CELL = 10
#: Components of each cell, and shared components of all cells.
OWN, SHARED = 10, 3
# Photographs in memory at once.
_BLOCK = 200
_NAMES = ("gray", "color", "own", "shared", "random")


@dataclass(frozen=True)
class Inputs:
    """Photographs of all people in the tasks.

    Parameters
    ----------
    person : array (n,) of str
    arrays : dict of array (n, 25, 25, channels), float16
        "gray" and "color": downsampled by bicubic interpolation. "own", "shared" and "random": scores of cells by their
        own components, by shared components, and by random bases of each cell.
    """

    person: Array
    arrays: dict[str, Array]

    @classmethod
    def made(cls, setting: Setting) -> Self:
        """Compute the inputs from the photographs in the data folder, with components of all 13,233 (section 5.6.2)."""
        stack = setting.faces()
        own, shared = (
            fit_store(
                stack, setting.workspace / f"{name}.zarr", CellPCA(k, cell_shape=CELL, shared=name == "shared")
            ).model
            for name, k in (("own", OWN), ("shared", SHARED))
        )
        reader = open_reader(setting.face_archives())
        person = people(reader.names)
        wanted = np.flatnonzero(np.isin(person, known_well(person, min(task.least for task in TASKS))))
        parts: dict[str, list[Array]] = {name: [] for name in _NAMES}
        bases = _random_bases(own)
        for start in range(0, len(wanted), _BLOCK):
            payloads = reader.fetch(wanted[start : start + _BLOCK].tolist())
            photographs = np.stack([decode(payload) for payload in payloads if isinstance(payload, bytes)])
            parts["gray"].append(np.stack([downsampled(photograph, "L") for photograph in photographs]))
            parts["color"].append(np.stack([downsampled(photograph, "RGB") for photograph in photographs]))
            parts["own"].append(own.transform(photographs))
            parts["shared"].append(shared.transform(photographs))
            parts["random"].append(_projected(photographs - own.mean_, bases))
        return cls(person[wanted], {name: np.concatenate(some).astype(np.float16) for name, some in parts.items()})

    def save(self, path: Path) -> None:
        """Write the inputs of networks to a file, which is never incomplete."""
        held: dict[str, Any] = {name: values for name, values in self.arrays.items() if name != "random"}
        content = io.BytesIO()
        np.savez(content, person=self.person, **held)
        atomic_write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of `save`.

        Raises
        ------
        StoreError
            If the file is not from `save`.
        """
        try:
            with np.load(path, allow_pickle=False) as bundle:
                held = {name: bundle[name] for name in bundle.files}
            return cls(held.pop("person"), held)
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(
                f"'{path}' is not a file of inputs ({one_line(error)}): run without --inputs to make one"
            ) from error


def downsampled(photograph: Array, mode: str) -> Array:
    """Return a photograph as 25 x 25 pixels, gray or in color (25, 25, channels), with values 0 to 255."""
    height, width = (length // CELL for length in photograph.shape[:2])
    image = Image.fromarray(photograph).convert(mode).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image).reshape(height, width, -1)


def signs(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return random signs for each component of each cell: the sign of a component is arbitrary."""
    drawn: Array = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), shape)
    return drawn


def _random_bases(model: CellPCA) -> Array:
    """Return random orthonormal rows for each cell (cells, OWN, attributes)."""
    random, grid = np.random.default_rng(0), model.grid_
    rows = [orthonormalize(random.standard_normal((OWN, grid.n_features(i)))) for i in range(grid.n_parts)]
    return np.stack(rows)


def _projected(samples: Array, bases: Array) -> Array:
    n, height, width, channels = samples.shape
    cells = samples.reshape(n, height // CELL, CELL, width // CELL, CELL, channels).swapaxes(2, 3)
    scores: Array = np.einsum("ncd,ckd->nck", cells.reshape(n, len(bases), -1), bases, optimize=True)
    return scores.reshape(n, height // CELL, width // CELL, -1)
