from __future__ import annotations

import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr
from distributed import Client

from dpca.storage.errors import DataError, StoreError
from dpca.storage.ingest import ingest
from dpca.storage.integrity.verify import verify
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions, survey
from tests.helpers.forked import Programs
from tests.storage.sources.ingesting import (
    BROKEN,
    SOURCES,
    WRITER,
    Breaking,
    Interrupted,
    bad_files,
    noted_writes,
    stacked,
)
from tests.storage.sources.made_sources import (
    LFW,
    contents,
    encoded,
    jpegs,
    member,
    pixels,
    pngs,
    write_folder,
    write_idx,
    write_tar,
    write_zip,
)

# -- what arrives


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", SOURCES)
def test_images_arrive_bit_for_bit_in_order(kind: str, tmp_path: Path) -> None:
    files = jpegs(11)
    stack = ingest(SOURCES[kind](tmp_path, files), tmp_path / "out.zarr")
    np.testing.assert_array_equal(stack.samples[:], stacked(files))
    assert stack.names.tolist() == list(files)
    assert stack.axes == ("sample", "y", "x", "channel")
    assert stack.data_range == (0.0, 255.0)
    assert stack.rejected == []
    assert stack.source["count"] == 11
    assert verify(tmp_path / "out.zarr") == []
    assert not (tmp_path / "out.zarr.partial").exists()


def test_the_store_opens_without_help(tmp_path: Path) -> None:
    files = pngs(5, channels=1)
    ingest(write_zip(tmp_path / "a.zip", {**files, "notes.txt": b"x"}), tmp_path / "out.zarr")
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    facts = dict(group.attrs)["dpca"]
    assert isinstance(facts, dict)
    assert {key: facts[key] for key in ("kind", "version", "axes", "data_range", "source", "color", "ignored")} == {
        "kind": "stack",
        "version": 1,
        "axes": ["sample", "y", "x"],
        "data_range": [0.0, 255.0],
        "source": {"kind": "zip", "name": "a.zip", "count": 5},
        "color": "gray",
        "ignored": 1,
    }
    with xarray.open_zarr(tmp_path / "out.zarr", consolidated=False) as dataset:
        assert dataset["samples"].dims == ("sample", "y", "x")
        np.testing.assert_array_equal(dataset["samples"].values, stacked(files))
        assert dataset["name"].values.tolist() == list(files)


def test_lfw_bit_for_bit(tmp_path: Path) -> None:
    paths = sorted(LFW.glob("lfw-deepfunneled-0*.tar"))
    if len(paths) != 4:
        pytest.skip("needs LFW (four tars) in ../shared/data from the project root")
    files = {}
    with tarfile.open(paths[3]) as archive:
        for info in archive:
            file = archive.extractfile(info)
            if file is not None:
                files[info.name] = file.read()
            if len(files) == 200:
                break
    stack = ingest(write_tar(tmp_path / "lfw.tgz", files, "gz"), tmp_path / "out.zarr", cell_shape=(10, 10))
    np.testing.assert_array_equal(stack.samples[:], stacked(files))
    assert stack.names.tolist() == list(files)
    assert all(length % 10 == 0 for length in stack.samples.chunks[1:3])


def test_mnist_with_labels(tmp_path: Path) -> None:
    if not (LFW / "mnist").is_dir():
        pytest.skip("needs MNIST (mnist/*.gz) in ../shared/data from the project root")
    source = LFW / "mnist" / "t10k-images-idx3-ubyte.gz"
    stack = ingest(source, tmp_path / "out.zarr")
    np.testing.assert_array_equal(stack.samples[:], open_reader(source).fetch(range(10_000)))
    assert stack.labels is not None
    assert np.bincount(stack.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.usefixtures("_many_shards")
def test_floats_get_the_range_of_their_values(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(13, 5, 4)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", values=values, y=np.array(["a", "b"] * 6 + ["é"]))
    stack = ingest(tmp_path / "a.npz", tmp_path / "out.zarr")
    assert stack.data_range == (float(values.min()), float(values.max()))
    assert stack.labels is not None
    assert stack.labels.tolist() == ["a", "b"] * 6 + ["é"]
    assert ingest(tmp_path / "a.npz", tmp_path / "out2.zarr", reading=ReadOptions(data_range=(-9, 9))).data_range == (
        -9.0,
        9.0,
    )


def test_arrays_of_every_kind_become_the_same_stack(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 4000, (9, 6, 7), dtype=np.uint16)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "a.npz", values=values)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["values"] = np.moveaxis(values, 0, 2)
    zarr.create_array(tmp_path / "a.zarr", data=values, zarr_format=2)
    write_idx(tmp_path / "a.idx", values.astype(">i2"), 0x0B)
    for name, options in (
        ("a.npy", {}),
        ("a.npz", {}),
        ("a.h5", {"axes": ("y", "x", "sample")}),
        ("a.zarr", {}),
        ("a.idx", {"reading": ReadOptions(data_range=(0, 4000))}),
    ):
        stack = ingest(tmp_path / name, tmp_path / f"{name}-out.zarr", **options)
        np.testing.assert_array_equal(stack.samples[:], values)
        assert stack.axes == ("sample", "y", "x")
        assert stack.data_range == ((values.min(), values.max()) if name != "a.idx" else (0.0, 4000.0))


def test_a_stack_store_is_a_source(tmp_path: Path) -> None:
    first = ingest(write_folder(tmp_path / "t", jpegs(4)), tmp_path / "a.zarr")
    second = ingest(tmp_path / "a.zarr", tmp_path / "b.zarr", cell_shape=(5, 5))
    np.testing.assert_array_equal(second.samples[:], first.samples[:])
    assert second.names.tolist() == first.names.tolist()


def test_color_crop_and_resize(tmp_path: Path) -> None:
    mixed = {"a.png": encoded(pixels(1, 30, 22, 1)), "b.png": encoded(pixels(2, 26, 40))}
    source = write_folder(tmp_path / "t", mixed)
    stack = ingest(source, tmp_path / "a.zarr", reading=ReadOptions(color="rgb", crop=(26, 22), resize=(13, 11)))
    assert stack.shape == (2, 13, 11, 3)
    gray = ingest(source, tmp_path / "b.zarr", reading=ReadOptions(color="gray", crop=(20, 20)))
    np.testing.assert_array_equal(gray.samples[0], pixels(1, 30, 22, 1)[5:25, 1:21])


def test_any_reader_is_a_source(tmp_path: Path) -> None:
    reader = Breaking(open_reader(write_folder(tmp_path / "t", pngs(3))), 99)
    np.testing.assert_array_equal(ingest(reader, tmp_path / "out.zarr").samples[:], stacked(pngs(3)))


# -- once, and only once


def test_the_second_time_nothing_is_written(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "t", jpegs(6))
    ingest(source, tmp_path / "out.zarr")

    def state() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")}

    before = state()
    stack = ingest(source, tmp_path / "out.zarr")
    assert stack.n_samples == 6
    assert state() == before


def test_the_same_bytes_wherever_it_runs(tmp_path: Path) -> None:
    stores = []
    for place in ("here", "there"):
        source = write_folder(tmp_path / place / "t", jpegs(5))
        ingest(source, tmp_path / place / "out.zarr", run=Run(threads=1 if place == "here" else 3))
        stores.append(contents(tmp_path / place / "out.zarr"))
    assert stores[0] == stores[1]


@pytest.mark.parametrize(
    "other",
    [
        {"cell_shape": (5, 5)},
        {"reading": ReadOptions(color="gray")},
        {"reading": ReadOptions(crop=(9, 9))},
        {"reading": ReadOptions(resize=(9, 9))},
        {"reading": ReadOptions(data_range=(0, 1))},
    ],
)
def test_other_settings_need_another_output(other: dict[str, Any], tmp_path: Path) -> None:
    source = write_folder(tmp_path / "t", jpegs(3))
    ingest(source, tmp_path / "out.zarr")
    with pytest.raises(StoreError, match="settings"):
        ingest(source, tmp_path / "out.zarr", **other)
    ingest(source, tmp_path / "out.zarr", run=Run(overwrite=True), **other)
    assert verify(tmp_path / "out.zarr") == []


def test_a_changed_source_needs_another_output(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "t", jpegs(3))
    ingest(source, tmp_path / "out.zarr")
    write_folder(source, {"img/000009.jpg": encoded(pixels(9), "JPEG")})
    with pytest.raises(StoreError, match="input"):
        ingest(source, tmp_path / "out.zarr")
    assert ingest(source, tmp_path / "out.zarr", run=Run(overwrite=True)).n_samples == 4


# -- interruption


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("limit", [1, 9, 17, 22])
@pytest.mark.parametrize("kind", ["png", "npz"])
def test_an_interrupted_run_goes_on(kind: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "png":
        source = write_folder(tmp_path / "t", pngs(23))
    else:
        source = tmp_path / "a.npz"
        np.savez(source, values=np.random.default_rng(0).normal(size=(23, 5, 4)))
    reader = Breaking(open_reader(source), 99)
    ingest(reader, tmp_path / "whole.zarr", run=Run(threads=1))
    with pytest.raises(Interrupted):
        ingest(Breaking(open_reader(source), limit), tmp_path / "out.zarr", run=Run(threads=1))
    assert not (tmp_path / "out.zarr").exists()

    written = noted_writes(monkeypatch)
    ingest(reader, tmp_path / "out.zarr", run=Run(threads=1))
    # the first rows decide on form and codec, so an early limit leaves nothing behind
    done = limit // 4 if kind == "png" and limit > 8 else 0
    assert written == [4 * shard for shard in range(done, 6)]
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize(("kind", "moments"), [("tar", [0, 11]), ("tgz", [23]), ("skip", [17, 38]), ("keep", [9, 30])])
def test_a_killed_process_is_resumed(kind: str, moments: list[int], tmp_path: Path, programs: Programs) -> None:
    files = jpegs(150)
    on_error: Any = "stop"
    if kind == "skip":
        on_error = "skip"
        files |= {"img/000031.jpg": BROKEN, "img/000033.jpg": BROKEN, "img/000120.jpg": b"text"}
    source = SOURCES["tgz" if kind == "tgz" else "tar"](tmp_path, files)
    reading = ReadOptions(on_error=on_error, keep_jpegs=kind == "keep")
    ingest(source, tmp_path / "whole.zarr", reading=reading)
    command = [sys.executable, str(Path(__file__).with_name("ingest_to_kill.py"))]
    chance = random.Random(kind)
    # each at a random moment after so many shards of 38: at the beginning, in the middle, around the end
    for n_done in moments:
        keep = ["keep"] * reading.keep_jpegs
        with programs.start([*command, str(source), str(tmp_path / "out.zarr"), on_error, *keep]) as process:
            assert process.stdout.readline() == "ready\n"
            while process.poll() is None and len(list(tmp_path.glob("out.zarr.partial/done-*/*"))) < n_done:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.05))
            process.kill()
            # around the end it may be too late
            assert process.wait() == -signal.SIGKILL or n_done == 38
    ingest(source, tmp_path / "out.zarr", reading=reading)
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")
    assert not (tmp_path / "out.zarr.partial").exists()


# -- on a cluster


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", ["zip", "tgz", "npz"])
def test_a_cluster_makes_the_same_store(kind: str, tmp_path: Path, cluster: Client) -> None:
    if kind == "npz":
        source = tmp_path / "a.npz"
        values = np.random.default_rng(0).normal(size=(23, 40, 30))
        values[9, 3, 2] = np.inf
        np.savez_compressed(source, values=values)
    else:
        source = SOURCES[kind](tmp_path, bad_files(23, {9: BROKEN}))
    for name, client in (("here", None), ("there", cluster)):
        ingest(source, tmp_path / name, reading=ReadOptions(on_error="skip"), run=Run(client=client))
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    with pytest.raises(DataError, match=r"000010\.jpg|09.*a\.npz/values.*inf"):
        ingest(source, tmp_path / "out", run=Run(client=cluster))


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", ["tar", "tgz"])
def test_a_killed_worker_does_not_matter(kind: str, tmp_path: Path, cluster: Client) -> None:
    files = jpegs(80)
    source = SOURCES[kind](tmp_path, files)
    cluster.wait_for_workers(2)
    killed: list[int] = []

    class KillingProgress:
        def __init__(self, stage: str, total: int, unit: str) -> None:
            self._done = 0

        def advance(self, n: int) -> None:
            self._done += n
            if self._done > 20 and not killed:
                pid = next(iter(cluster.run(_pid).values()))
                killed.append(pid)
                subprocess.run(["kill", "-9", str(pid)], check=True)

        def close(self) -> None:
            pass

    stack = ingest(source, tmp_path / "out.zarr", run=Run(client=cluster, progress=KillingProgress))
    assert killed
    np.testing.assert_array_equal(stack.samples[:], stacked(files))
    cluster.wait_for_workers(2)


def _pid() -> int:
    import os

    return os.getpid()


def test_a_source_that_a_worker_does_not_see(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", jpegs(3))
    part = open_reader(path).part([0, 1])
    path.unlink()
    form = survey(open_reader(write_zip(tmp_path / "b.zip", jpegs(3))), ReadOptions())
    with pytest.raises(DataError, match=r"a\.zip.*worker"):
        WRITER.write_decoded(str(tmp_path / "out"), (0, 0, 0, 0), part, form, True)


def test_progress_counts_every_sample_once(tmp_path: Path) -> None:
    told: list[Any] = []

    class Counting:
        def __init__(self, stage: str, total: int, unit: str) -> None:
            told.append((stage, total, unit))

        def advance(self, n: int) -> None:
            told.append(n)

        def close(self) -> None:
            told.append("closed")

    ingest(
        write_tar(tmp_path / "a.tar", [member(n, p) for n, p in jpegs(7).items()]),
        tmp_path / "o",
        run=Run(progress=Counting),
    )
    assert told[0] == ("ingest", 7, "samples")
    assert sum(told[1:-1]) == 7
    assert told[-1] == "closed"
