"""Frames of molecular trajectories, one sample per frame.

The path of a DCD file selects all of its atoms. For other formats, give an ``AtomGroup`` or ``Universe`` of MDAnalysis,
which selects its own atoms in all frames of its trajectory. Transformations of the trajectory are applied.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpca.storage.arrays.coordinates import Coordinate, Coordinates
from dpca.storage.disk import file_bytes
from dpca.storage.errors import DataError
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest, digest_file, require, runs, source_errors
from dpca.storage.readers.format import Format

#: Names of the axes of a frame, and of the coordinate with the masses.
AXES, MASS = ("atom", "xyz"), "mass"

# XTC and TRR files are not opened by path, since some damaged files crash the process (MDAnalysis 2.11).
_DCD = b"CORD"


class TrajectoryReader(ArrayReader):
    """Positions of atoms (n_frames, n_atoms, 3), float32, in angstrom.

    Each task opens the files and reads its own frames. MDAnalysis writes a list of frames beside XTC and TRR files
    (``.NAME_offsets.npz``) if the folder is writable.

    Parameters
    ----------
    atoms : str, MDAnalysis.AtomGroup or MDAnalysis.Universe
        The path of a trajectory, or atoms of a trajectory.
    axes : sequence of str, optional
        See `ArrayReader`. The default is "atom" and "xyz".

    Raises
    ------
    DataError
        If MDAnalysis is missing, the file is broken, or no atom is selected.
    """

    kind = "trajectory"

    def __init__(self, atoms: Any, axes: Sequence[str] | None = None) -> None:
        if isinstance(atoms, str):
            self.name, self._chosen = os.path.basename(atoms), None
            self._trajectory, along = _opened(os.path.abspath(atoms)), {}
            n_atoms = self._trajectory.n_atoms
        else:
            group = atoms.atoms
            self._trajectory, self._chosen = group.universe.trajectory, np.asarray(group.indices)
            along = {name: Coordinate(AXES[:1], values, about) for name, values, about in _known(group)}
            first = next(iter(self._files), None)
            self.name, n_atoms = os.path.basename(first) if first else "the trajectory", len(group)
            if n_atoms == 0:
                raise DataError(f"no atom of '{self.name}' is selected: give an AtomGroup with at least one atom")
        shape = (self._trajectory.n_frames, n_atoms, 3)
        along["xyz"] = Coordinate(AXES[1:], np.array(["x", "y", "z"]), {})
        found = Coordinates(("frame", *AXES), along, {"units": "angstrom"})
        super().__init__(self.name, shape, np.dtype(np.float32), axes or AXES, found)
        if not self.in_order:
            raise DataError(f"the samples of the trajectory '{self.name}' are its frames: leave axes out")

    @property
    def _files(self) -> list[str]:
        found = getattr(self._trajectory, "filenames", None)
        found = [self._trajectory.filename] if found is None else found
        return [os.fspath(one) for one in found if isinstance(one, str | os.PathLike) and os.path.isfile(one)]

    def fingerprint(self) -> str:
        """Hash of sizes and ends of the files, of the atoms, and of the first and last frame.

        The hash of a trajectory in memory includes all frames.
        """
        # These frames show the effect of transformations.
        hashed = sorted({0, len(self) - 1}) if self._files else range(len(self))
        ends = np.asarray(self.fetch(hashed)).tobytes() if len(self) else b""
        chosen = b"" if self._chosen is None else self._chosen.astype(np.int64).tobytes()
        steps = [type(step).__name__ for step in self._trajectory.transformations]
        return digest([self.kind, len(self), *map(digest_file, self._files), chosen, ends, *steps])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Return a function with the trajectory, which opens its files again; or with frames in memory."""
        wanted = list(runs(indices))
        if hasattr(self._trajectory, "get_array"):  # a trajectory in memory would be copied with all frames
            frames = self._trajectory.timeseries(order="fac")
            return partial(_joined, [frames[start:stop] for start, stop in wanted], self._chosen)
        return partial(_read, self._trajectory, self._chosen, wanted, self.name)


def _known(group: Any) -> Iterator[tuple[str, NDArray[Any], dict[str, str]]]:
    """Yield names, values and attributes of the known properties of atoms."""
    # A topology without masses or names lacks these attributes.
    if hasattr(group, "masses"):
        yield MASS, np.asarray(group.masses, np.float64), {"units": "u"}
    if hasattr(group, "names"):
        yield "atom_name", np.asarray(group.names, str), {}
    if hasattr(group, "resids"):
        yield "residue", np.asarray(group.resids, np.int64), {}


def selected_atoms(topology: str, trajectories: Sequence[str], words: str | None = None) -> Any:
    """Return the selected atoms (an ``AtomGroup``) of a trajectory in one or several files.

    Parameters
    ----------
    topology : str
        Path of a topology file that MDAnalysis supports.
    trajectories : sequence of str
        Paths of the files of the trajectory, in order.
    words : str, optional
        Selection of atoms in the language of MDAnalysis. The default is all atoms.

    Raises
    ------
    DataError
        If MDAnalysis is missing, a file cannot be read, or the selection is invalid.
    """
    library = require("MDAnalysis", "molecules", f"'{topology}'")
    for path in (topology, *trajectories):
        if not os.path.isfile(path):
            raise DataError(f"there is no file '{path}': check the path")
    with _errors_named(os.path.basename(topology)):
        universe = library.Universe(topology, list(trajectories))
    with source_errors(f"'{words}' selects no atoms", "see the selections of MDAnalysis"):
        return universe.atoms if words is None else universe.select_atoms(words)


def is_trajectory(x: Any) -> bool:
    """Return whether ``x`` is an ``AtomGroup`` or a ``Universe`` of MDAnalysis, which is not imported here."""
    library = sys.modules.get("MDAnalysis")
    return library is not None and isinstance(x, (library.AtomGroup, library.Universe))


def _opened(path: str) -> Any:
    name = os.path.basename(path)
    require("MDAnalysis", "molecules", f"'{name}'")
    from MDAnalysis.coordinates.DCD import DCDReader

    with _errors_named(name):
        # Checked before memory is allocated.
        if not 0 < 12 * (claimed := DCDReader.parse_n_atoms(path)) <= file_bytes(path):
            raise DataError(f"'{name}' claims {claimed:,} atoms, more than its bytes can contain: get it again")
        return DCDReader(path)


def _read(
    trajectory: Any, chosen: NDArray[np.int64] | None, wanted: Sequence[tuple[int, int]], name: str
) -> NDArray[Any]:
    # A trajectory has one current frame, so each task uses a copy.
    with _errors_named(name):
        own = trajectory.copy()
        n_atoms = own.n_atoms if chosen is None else len(chosen)
        frames = np.empty((sum(stop - start for start, stop in wanted), n_atoms, 3), np.float32)
        numbers = (number for run in wanted for number in range(*run))
        for place, number in enumerate(numbers):
            positions = own[number].positions
            frames[place] = positions if chosen is None else positions[chosen]
        own.close()
    return frames


def _joined(pieces: Sequence[NDArray[Any]], chosen: NDArray[np.int64] | None) -> NDArray[Any]:
    return np.concatenate([piece if chosen is None else piece[:, chosen] for piece in pieces]).astype(np.float32)


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    """Convert the errors of MDAnalysis, and ignore its warnings for programmers."""
    with source_errors(f"'{name}' is truncated or no supported trajectory"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _open(path: str, key: str | None, axes: Sequence[str] | None) -> TrajectoryReader:
    if key is not None:
        raise DataError(f"key={key!r} selects an array of a file, but '{path}' is a trajectory: leave it out")
    return TrajectoryReader(path, axes)


FORMATS = (Format("trajectory (DCD)", lambda file: file.first[4:8] == _DCD, _open),)
