"""Frames of molecular trajectories (DCD, and through atoms of MDAnalysis what else it reads), one sample a frame.

A file is read by its path, all atoms of it. An ``AtomGroup`` or ``Universe`` of MDAnalysis stands for its own atoms in
all frames of its trajectory, as transformations that were added to it leave them.
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
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.raw import ArrayReader
from dpca.storage.readers.base import digest, digest_file, require, runs
from dpca.storage.readers.format import FileHead, Format

#: Names of a frame's axes, and of the coordinate that holds masses.
AXES, MASS = ("atom", "xyz"), "mass"

# XTC and TRR are read through atoms only: some damaged files of them end the process (MDAnalysis 2.11).
_DCD = b"CORD"


class TrajectoryReader(ArrayReader):
    """Positions of atoms (n_frames, n_atoms, 3), float32, in angstrom.

    Tasks open the files for themselves and read their own frames. MDAnalysis keeps a list of frames beside XTC and
    TRR files (``.NAME_offsets.npz``), where it may.

    Parameters
    ----------
    atoms : str, MDAnalysis.AtomGroup or MDAnalysis.Universe
        The path of a trajectory, or atoms in all frames of theirs.
    axes : sequence of str, optional
        See `ArrayReader`; default "atom" and "xyz".

    Raises
    ------
    DataError
        If MDAnalysis is missing, the file is broken, or there is no atom.
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
                raise DataError(f"no atom of '{self.name}' is selected: give an AtomGroup that holds some")
        shape = (self._trajectory.n_frames, n_atoms, 3)
        along["xyz"] = Coordinate(AXES[1:], np.array(["x", "y", "z"]), {})
        found = Coordinates(("frame", *AXES), along, {"units": "angstrom"})
        super().__init__(self.name, shape, np.dtype(np.float32), axes or AXES, found)
        if self.order != (0, 1, 2):
            raise DataError(f"'{self.name}' is a trajectory, whose samples are its frames: leave axes out")

    @property
    def _files(self) -> list[str]:
        found = getattr(self._trajectory, "filenames", None)
        found = [self._trajectory.filename] if found is None else found
        return [os.fspath(one) for one in found if isinstance(one, str | os.PathLike) and os.path.isfile(one)]

    def fingerprint(self) -> str:
        """Hash of sizes and ends of the files, of the chosen atoms, and of the first and last of their frames.

        Of a trajectory in memory, of all frames.
        """
        # The ends know what transformations do.
        looked_at = sorted({0, len(self) - 1}) if self._files else range(len(self))
        ends = np.asarray(self.fetch(looked_at)).tobytes() if len(self) else b""
        chosen = b"" if self._chosen is None else self._chosen.astype(np.int64).tobytes()
        steps = [type(step).__name__ for step in self._trajectory.transformations]
        return digest([self.kind, len(self), *map(digest_file, self._files), chosen, ends, *steps])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the trajectory, which opens its files again where it arrives; of one in memory, the frames."""
        wanted = list(runs(indices))
        if hasattr(self._trajectory, "get_array"):  # in memory, where a reader holds, and copies, all frames
            frames = self._trajectory.timeseries(order="fac")
            return partial(_joined, [frames[start:stop] for start, stop in wanted], self._chosen)
        return partial(_read, self._trajectory, self._chosen, wanted, self.name)


def _known(group: Any) -> Iterator[tuple[str, NDArray[Any], dict[str, str]]]:
    """Yield names, values and attributes of what is known of each atom."""
    # A topology without masses, or names, has no such attribute.
    if hasattr(group, "masses"):
        yield MASS, np.asarray(group.masses, np.float64), {"units": "u"}
    if hasattr(group, "names"):
        yield "atom_name", np.asarray(group.names, str), {}
    if hasattr(group, "resids"):
        yield "residue", np.asarray(group.resids, np.int64), {}


def selected_atoms(topology: str, trajectories: Sequence[str], words: str | None = None) -> Any:
    """Return the atoms (an ``AtomGroup``) of a trajectory, of several files one after the other, that a topology names.

    Parameters
    ----------
    topology : str
        Path of a file that MDAnalysis reads as one.
    trajectories : sequence of str
        Paths.
    words : str, optional
        Which atoms, in MDAnalysis's language of selections; default all.

    Raises
    ------
    DataError
        If MDAnalysis is missing, a file cannot be read, or no atom is meant.
    """
    library = require("MDAnalysis", "molecules", f"'{topology}'")
    for path in (topology, *trajectories):
        if not os.path.isfile(path):
            raise DataError(f"there is no file '{path}': check the path")
    with _told(os.path.basename(topology)):
        universe = library.Universe(topology, list(trajectories))
    try:
        return universe.atoms if words is None else universe.select_atoms(words)
    except Exception as error:  # of a language of its own
        raise DataError(f"'{words}' selects no atoms ({one_line(error)}): see MDAnalysis's selections") from error


def is_trajectory(x: Any) -> bool:
    """Say whether this is an ``AtomGroup`` or a ``Universe`` of MDAnalysis, which is imported by those who have one."""
    library = sys.modules.get("MDAnalysis")
    return library is not None and isinstance(x, (library.AtomGroup, library.Universe))


def _opened(path: str) -> Any:
    name = os.path.basename(path)
    require("MDAnalysis", "molecules", f"'{name}'")
    from MDAnalysis.coordinates.DCD import DCDReader

    with _told(name):
        # Before memory is taken for a claim.
        if not 0 < 12 * (claimed := DCDReader.parse_n_atoms(path)) <= file_bytes(path):
            raise DataError(f"'{name}' claims {claimed:,} atoms, more than its bytes can hold: get it again")
        return DCDReader(path)


def _read(
    trajectory: Any, chosen: NDArray[np.int64] | None, wanted: Sequence[tuple[int, int]], name: str
) -> NDArray[Any]:
    # A reader holds one frame at a time: each task has its own.
    with _told(name):
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
def _told(name: str) -> Iterator[None]:
    """Turn what a library says of a file into one sentence; what it says to programmers is left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # broken files end in many kinds
        raise DataError(
            f"'{name}' is truncated or no trajectory that is read ({one_line(error)}): get it again"
        ) from error


def _is_dcd(file: FileHead) -> bool:
    return file.first[4:8] == _DCD


def _open(path: str, key: str | None, axes: Sequence[str] | None) -> TrajectoryReader:
    if key is not None:
        raise DataError(f"key={key!r} chooses an array of a file, and '{path}' is a trajectory: leave it out")
    return TrajectoryReader(path, axes)


FORMATS = (Format("trajectory (DCD)", _is_dcd, _open),)
