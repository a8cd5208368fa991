from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

from dpca.storage.arrays.arrays import create_array, create_root, write_shard, write_strings
from dpca.storage.arrays.layout import Layout
from dpca.storage.errors import DataError, StoreError
from dpca.storage.integrity.verify import verify
from dpca.storage.run import Run


@pytest.fixture
def path(tmp_path, make_stack):
    images = np.random.default_rng(0).integers(0, 255, (10, 6, 8, 3), dtype=np.uint8)
    return make_stack(tmp_path / "faces.zarr", images)


def test_a_whole_store_has_no_problems(path, client):
    assert verify(path) == []
    assert verify(path, run=Run(client=client)) == []
    assert verify(path / "samples") == []


def test_workers_in_another_folder_find_the_store(path, cluster, monkeypatch):
    monkeypatch.chdir(path.parent)
    assert os.getcwd() not in cluster.run(os.getcwd).values()
    assert verify(path.name, run=Run(client=cluster)) == []
    shard(path, "samples", 0, 0, 0, 0).unlink()
    assert [problem.partition(":")[0] for problem in verify(path.name, run=Run(client=cluster))] == ["samples"]


def test_progress_counts_every_shard(path):
    stages = []

    class Stage:
        def __init__(self, stage, total, unit):
            self.said = (stage, total, unit)
            self.done, self.closed = 0, False
            stages.append(self)

        def advance(self, n):
            self.done += n

        def close(self):
            self.closed = True

    verify(path, run=Run(progress=Stage))
    assert [(s.said, s.done, s.closed) for s in stages] == [(("verify", 4, "shards"), 4, True)]


def shard(path, name, *index):
    return path.joinpath(name, "c", *map(str, index))


def test_every_kind_of_damage_is_named(path, client):
    shard(path, "samples", 0, 0, 0, 0).unlink()
    shard(path, "samples", 1, 0, 0, 0).write_bytes(b"")
    content = bytearray(shard(path, "samples", 2, 0, 0, 0).read_bytes())
    content[30] ^= 1
    shard(path, "samples", 2, 0, 0, 0).write_bytes(content)
    names = shard(path, "name", 0)
    names.write_bytes(names.read_bytes()[:-1])
    problems = verify(path)
    assert len(problems) == 4
    assert problems[0].startswith("name: shard (0,) is damaged (")
    assert problems[1] == "samples: shard (0, 0, 0, 0) is missing"
    assert problems[2] == "samples: shard (1, 0, 0, 0) is empty"
    assert problems[3].startswith("samples: shard (2, 0, 0, 0) is damaged (Stored and computed checksum")
    assert verify(path, run=Run(client=client)) == problems


@pytest.mark.parametrize("kept", [1, 3, 20, 300])
def test_truncated_shards_are_found(path, kept):
    torn = shard(path, "samples", 1, 0, 0, 0)
    torn.write_bytes(torn.read_bytes()[:kept])
    (problem,) = verify(path)
    assert problem.startswith("samples: shard (1, 0, 0, 0) is damaged")


def test_names_of_another_length(path):
    write_strings(zarr.open_group(path, mode="a"), "name", ["a"] * 9)
    (problem,) = verify(path)
    for words in ("samples", "axis 'sample'", "10", "9 in name"):
        assert words in problem


def test_axes_are_compared_within_a_group_only(path):
    group = zarr.open_group(path, mode="a").create_group("rejected")
    for name in ("name", "reason"):
        write_strings(group, name, ["x"], axis="sample")
    assert verify(path) == []


def test_a_missing_array_and_torn_metadata(path):
    (path / "name" / "zarr.json").unlink()
    problems = verify(path)
    assert "name: the names of the samples are missing" in problems
    assert any("name is not recognized" in problem for problem in problems)
    (path / "samples" / "zarr.json").write_text("{")
    problems = verify(path)
    assert any("samples/zarr.json" in problem for problem in problems)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(tmp_path, value):
    values = np.zeros((10, 6), "f4")
    values[7, 2] = value
    group = create_root(tmp_path / "s.zarr", kind="scores", fingerprint="f")
    for name, attributes in (("scores", {}), ("psnr", {"may_be_infinite": True})):
        layout = Layout((2, 6), (4, 6))
        array = create_array(group, name, values.shape, "f4", layout, ("sample", "c"), attributes=attributes)
        for start in (0, 4, 8):
            write_shard(array, start, values[start : start + 4])
    problems = verify(tmp_path / "s.zarr")
    assert [problem.partition(":")[0] for problem in problems] == (["psnr"] if np.isnan(value) else []) + ["scores"]
    for problem in problems:
        assert "shard (1, 0)" in problem
        assert "finite" in problem
        assert "[7, 2]" in problem


def test_arrays_of_nested_groups_are_read_too(tmp_path):
    group = create_root(tmp_path / "m.zarr", kind="model", fingerprint="f")
    inner = group.create_group("cells").create_group("basis")
    array = create_array(inner, "mean", (4, 6), "f8", Layout((4, 6), (4, 6)), ("cell", "feature"))
    assert verify(tmp_path / "m.zarr") == ["cells/basis/mean: shard (0, 0) is missing"]
    write_shard(array, 0, np.ones((4, 6)))
    assert verify(tmp_path / "m.zarr") == []


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_foreign_arrays_may_lack_chunks_but_not_be_broken(tmp_path, zarr_format):
    group = zarr.open_group(tmp_path / "f.zarr", mode="w", zarr_format=zarr_format)
    array = group.create_array("data", shape=(6, 4), chunks=(2, 4), dtype="f4", fill_value=0)
    array[2:4] = 1
    group.create_array("scalar", shape=(), dtype="f8", fill_value=1)
    (tmp_path / "f.zarr" / "notes.txt").write_text("theirs")
    assert verify(tmp_path / "f.zarr") == []
    (chunk,) = (p for p in (tmp_path / "f.zarr" / "data").rglob("*") if p.is_file() and p.name[0] in "01")
    chunk.write_bytes(b"xx")
    (problem,) = verify(tmp_path / "f.zarr")
    assert problem.startswith("data: shard (1, 0) is damaged")


def test_what_is_not_there_or_no_store(tmp_path):
    with pytest.raises(DataError, match="nothing"):
        verify(tmp_path / "none.zarr")
    (tmp_path / "f.txt").write_text("x")
    with pytest.raises(StoreError, match="Zarr"):
        verify(tmp_path / "f.txt")
