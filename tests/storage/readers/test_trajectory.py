"""Trajectories as MDAnalysis reads them; a small one is written here."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca.cli import main
from dpca.engine.sources.source import as_source, batches
from dpca.storage import DataError, ingest, open_stack
from dpca.storage.readers import open_reader

library = pytest.importorskip("MDAnalysis", reason='needs pip install -e ".[molecules]"')
pytestmark = pytest.mark.filterwarnings("ignore")
N, ATOMS = 9, 7
FRAMES = np.random.default_rng(0).normal(0, 9, (N, ATOMS, 3)).astype(np.float32)


def universe(**given: Any) -> Any:
    made = library.Universe.empty(ATOMS, trajectory=True)
    made.add_TopologyAttr("masses", np.arange(1.0, ATOMS + 1))
    made.add_TopologyAttr("names", [f"C{i}" for i in range(ATOMS)])
    made.load_new(given.get("x", FRAMES))
    return made


def written(folder: Path, name: str) -> Path:
    made = universe()
    with library.Writer(str(folder / name), ATOMS) as file:
        for _ in made.trajectory:
            file.write(made.atoms)
    return folder / name


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    return written(tmp_path_factory.mktemp("trajectory"), "a.dcd")


def test_frames_of_a_file(path: Path, tmp_path: Path) -> None:
    reader = open_reader(path)
    assert (len(reader), reader.sample_shape, reader.axes) == (N, (ATOMS, 3), ("atom", "xyz"))
    near = {"atol": 1e-5}
    np.testing.assert_allclose(pickle.loads(pickle.dumps(reader.part([1, 2, 7])))(), FRAMES[[1, 2, 7]], **near)
    source = as_source(path)
    read = [block.copy() for _, block in batches(source, (2, N), ((0, ATOMS), (0, 3)), 3)]
    np.testing.assert_allclose(np.concatenate(read), FRAMES[2:], **near)
    np.testing.assert_allclose(ingest(path, tmp_path / "s.zarr").samples[:], FRAMES, **near)
    assert reader.fingerprint() == open_reader(path).fingerprint()


@pytest.mark.parametrize("name", ["a.dcd", "a.xtc", "a.trr"])
def test_atoms_that_are_selected(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, name)
    chosen = universe(x=FRAMES[:1]).load_new(str(path)).select_atoms("name C1 C5 C6")
    stack = ingest(chosen, tmp_path / "s.zarr")
    np.testing.assert_allclose(stack.samples[:], FRAMES[:, [1, 5, 6]], atol=0.006)
    along = stack.coordinates.arrays
    assert along["mass"].values.tolist() == [2.0, 6.0, 7.0]
    assert along["atom_name"].values.tolist() == ["C1", "C5", "C6"]
    assert open_reader(chosen).fingerprint() != open_reader(chosen.universe).fingerprint()


def test_what_transformations_make_of_frames(path: Path) -> None:
    from MDAnalysis.transformations import translate

    made = universe(x=FRAMES[:1]).load_new(str(path))
    plain = open_reader(made).fingerprint()
    made.trajectory.add_transformations(translate([1, 2, 3]))
    np.testing.assert_allclose(open_reader(made).fetch([0, 8]), FRAMES[[0, 8]] + np.float32([1, 2, 3]), atol=0.006)
    assert open_reader(made).fingerprint() != plain


def test_frames_in_memory() -> None:
    group = universe().atoms[[4, 2]]
    np.testing.assert_array_equal(open_reader(group).fetch([0, 1, 5]), FRAMES[[0, 1, 5]][:, [4, 2]])
    other = FRAMES.copy()
    other[4, 0, 0] += 1
    assert len({open_reader(universe(x=x)).fingerprint() for x in (FRAMES, other)}) == 2


def test_what_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / path.name
    for content in (whole[:30], whole[: len(whole) // 3], whole[:8] + b"\xff" * 200):
        cut.write_bytes(content)
        with suppress(DataError):  # of fewer whole frames there is a trajectory, too
            reader = open_reader(cut)
            reader.fetch(range(len(reader)))
    with pytest.raises(DataError, match="format"):  # whose damage ends the process
        open_reader(written(tmp_path, "a.xtc"))
    with pytest.raises(DataError, match="atom"):
        open_reader(universe().select_atoms("name X"))
    with pytest.raises(DataError, match="key"):
        open_reader(path, key="a")
    with pytest.raises(DataError, match="axes"):
        open_reader(path, axes=("sample", "xyz", "atom")[::-1])


@pytest.mark.long
def test_atoms_by_the_words_of_a_command(path: Path, tmp_path: Path, capsys: Any) -> None:
    topology, target = str(tmp_path / "a.pdb"), str(tmp_path / "s.zarr")
    universe().atoms.write(topology)
    given = ["ingest", str(path), target, "--topology", topology]
    assert main([*given, "--select", "name C1", "--workers", "1"]) == 0
    assert open_stack(target).sample_shape == (1, 3)
    for wrong in (["--select", "name ("], ["--select", "name X"], ["--topology", str(tmp_path / "b.pdb")]):
        assert main([*given, *wrong]) == 3
    assert main(["ingest", str(path), target, "--select", "backbone"]) == 3
    assert capsys.readouterr().err.count("\n") == 4
