"""Only data that were written are read: missing shards, other models, swapped and replaced files are errors."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import zarr
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import dpca
from dpca import PCA, CellPCA, StreamingPCA
from dpca.cli import main as command
from dpca.jobs import fit_store, reconstruct_store, transform_store
from dpca.storage import DataError, StoreError, ingest, open_stack, verify
from dpca.storage.arrays.arrays import write_strings
from dpca.storage.arrays.reading import open_array
from dpca.storage.integrity.checked import checked_store
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.conftest import smooth_images
from tests.trust.damage import SHAPE, change_value, json_places


def unvouched(store: Path) -> None:
    """Take the manifest away, as in a store of an earlier version."""
    for path in store.rglob("checksums.json"):
        path.unlink()
    for path in store.rglob("zarr.json"):
        metadata = json.loads(path.read_text())
        metadata["attributes"].get("dpca", {}).pop("manifest", None)
        path.write_text(json.dumps(metadata))


def shard(store: Path, array: str) -> Path:
    return next(p for p in sorted((store / array / "c").rglob("*")) if p.is_file())


def take_away(path: Path) -> None:
    path.unlink()


def put_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


LAZY: dict[str, Callable[[Path], Any]] = {
    "scores": lambda a: dpca.open_scores(a / "scores.zarr", model=a / "cells.zarr").scores,
    "levels": lambda a: dpca.open_scores(a / "scores.zarr", 1, model=a / "cells.zarr").stack(),
    "samples": lambda a: dpca.open_scores(a / "scores.zarr", model=a / "cells.zarr").stack()[3],
    "by path": lambda a: CellPCA.load(a / "cells.zarr").inverse_transform(a / "scores.zarr" / "scores"),
    "by zarr": lambda a: CellPCA.load(a / "cells.zarr").inverse_transform(
        zarr.open(a / "scores.zarr" / "scores", mode="r")
    ),
}


@pytest.mark.parametrize("manifest", [True, False], ids=["", "of an earlier version"])
@pytest.mark.parametrize("lose", [take_away, put_a_directory, empty])
def test_lazy_scores_of_a_missing_shard_are_an_error(
    lose: Callable[[Path], None], manifest: bool, stores: Path, cluster: Any
) -> None:
    if not manifest:
        unvouched(stores / "scores.zarr")
    lose(shard(stores / "scores.zarr", "scores"))
    for made in LAZY.values():
        lazy = made(stores)
        for compute in (
            lambda lazy=lazy: lazy.compute(scheduler="synchronous"),
            lambda lazy=lazy: lazy.compute(scheduler="threads"),
            lazy.compute,
        ):
            with pytest.raises(StoreError, match="scores.*(missing|empty|regular|damaged)"):
                compute()


@pytest.mark.parametrize("manifest", [True, False], ids=["", "of an earlier version"])
@pytest.mark.parametrize("lose", [take_away, put_a_directory, empty])
def test_samples_of_a_missing_shard_are_an_error(
    lose: Callable[[Path], None], manifest: bool, stores: Path, cluster: Any, tmp_path: Path
) -> None:
    path = stores / "stack.zarr"
    if not manifest:
        unvouched(path)
    lose(shard(path, "samples"))
    models = [
        CellPCA.load(stores / "cells.zarr"),
        StreamingPCA.load(stores / "streaming.zarr"),
        PCA.load(stores / "exact.zarr"),
    ]
    stack = open_stack(path)
    tries: list[Callable[[], Any]] = [
        lambda: stack.samples[...],
        lambda: stack.samples[3],
        lambda: np.asarray(open_array(path / "samples")[2:5]),
        lambda: CellPCA(2, cell_shape=8).fit(path),
        lambda: StreamingPCA(2).fit(zarr.open(path / "samples", mode="r")),
        lambda: ingest(path, tmp_path / "again.zarr", run=Run(threads=1)),
        lambda: transform_store(stack, stores / "cells.zarr", tmp_path / "scores.zarr"),
        *(
            (lambda model=model, x=x: model.transform(x).compute())
            for model in models
            for x in (path, stack, stack.samples)
        ),
        lambda: models[2].score_samples(path).compute(scheduler="synchronous"),
        *(
            (lambda new=new: new.partial_fit(zarr.open(path / "samples", mode="r")))
            for new in (CellPCA(2, cell_shape=8), StreamingPCA(2))
        ),
    ]
    for attempt in tries:
        with pytest.raises((StoreError, DataError), match="samples.*(missing|empty|regular|damaged)"):
            attempt()
    assert not (tmp_path / "scores.zarr").exists()
    assert not (tmp_path / "again.zarr").exists()


@pytest.mark.parametrize("manifest", [True, False], ids=["", "of an earlier version"])
@pytest.mark.parametrize("lose", [take_away, put_a_directory, empty])
def test_names_labels_and_quality_of_a_missing_shard_are_an_error(
    lose: Callable[[Path], None], manifest: bool, stores: Path, tmp_path: Path
) -> None:
    for store in ("stack.zarr", "scores.zarr"):
        if not manifest:
            unvouched(stores / store)
    for store, array in (("stack.zarr", "name"), ("stack.zarr", "label"), ("scores.zarr", "name")):
        lose(shard(stores / store, array))
    stack = open_stack(stores / "stack.zarr")
    for attempt in (
        lambda: stack.names,
        lambda: stack.labels,
        lambda: transform_store(stack, stores / "cells.zarr", tmp_path / "s.zarr"),
        lambda: reconstruct_store(stores / "cells.zarr", stores / "scores.zarr", tmp_path / "r.zarr"),
    ):
        with pytest.raises(StoreError, match="(name|label).*(missing|empty|regular|damaged)"):
            attempt()
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".zarr") == []
    for name in ("mse", "ssim"):
        lose(shard(stores / "scores.zarr", name))
        assert any(problem.startswith(name) for problem in verify(stores / "scores.zarr"))


# -- scores and models


def test_scores_are_read_with_their_own_model_only(
    stores: Path, tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, other = stores / "scores.zarr", stores.parent / "other.zarr"
    model = CellPCA(3, cell_shape=8).fit(smooth_images(20, SHAPE[1:], seed=9))
    model.save(other)
    refused = pytest.raises(DataError, match="another")
    for given in (other, model):
        with refused:
            dpca.open_scores(scores, model=given)
    with refused:
        reconstruct_store(other, scores, tmp_path / "out.zarr")
    for given in (scores / "scores", zarr.open(scores / "scores", mode="r"), open_array(scores / "scores")):
        with refused:
            model.inverse_transform(given)
    assert command(["reconstruct", str(other), str(scores), str(tmp_path / "out.zarr"), "--scheduler", scheduler]) == 3
    assert "another model" in capsys.readouterr().err
    assert not (tmp_path / "out.zarr").exists()
    # Its own model is recognized by its content at any path.
    own = CellPCA.load(stores / "cells.zarr")
    own.save(tmp_path / "copy.zarr")
    for given in (own, tmp_path / "copy.zarr", CellPCA(3, cell_shape=8).fit(stores / "stack.zarr")):
        assert dpca.open_scores(scores, model=given).stack().shape == SHAPE


# -- intact files at the wrong place


def exchange(one: Path, two: Path) -> None:
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def other_names(store: Path) -> Path:
    """Write other names over those of a store, with letters for digits; return their file, of the same size."""
    before, letters = shard(store, "name").stat().st_size, str.maketrans("0123456789", "klmnopqrst")
    names = [name.translate(letters) for name in open_stack(store).names]
    assert write_strings(zarr.open_group(store, mode="r+"), "name", names).shards is None
    written = shard(store, "name")
    assert written.stat().st_size == before
    return written


@pytest.mark.parametrize("array", ["samples", "name", "label"])
def test_a_shard_of_another_store_is_named_and_not_read(array: str, stores: Path, made: Path) -> None:
    path = stores / "stack.zarr"
    wrong, other = shard(path, array), shard(made.parent / "b" / "stack.zarr", array)
    if array == "name":  # the stores have the same ones, in a chunk that is not sharded
        shutil.copytree(made / "stack.zarr", stores / "other.zarr")
        other = other_names(stores / "other.zarr")
    shutil.copyfile(other, wrong)
    assert wrong.read_bytes() != shard(made / "stack.zarr", array).read_bytes()
    assert [p.partition(":")[0] for p in verify(path)] == [wrong.relative_to(path).as_posix()]
    with pytest.raises(StoreError, match=f"{array}/c/0"):
        _ = {"samples": lambda s: s.samples[...], "name": lambda s: s.names, "label": lambda s: s.labels}[array](
            open_stack(path)
        )


@pytest.mark.parametrize("store", ["stack.zarr", "floats.zarr", "scores.zarr"])
def test_shards_that_changed_places_are_named_and_not_read(store: str, stores: Path) -> None:
    array = "scores" if store == "scores.zarr" else "samples"
    shards = [p for p in sorted((stores / store / array / "c").rglob("*")) if p.is_file()]
    exchange(shards[1], shards[2])
    names = {p.relative_to(stores / store).as_posix() for p in shards[1:3]}
    assert {p.partition(":")[0] for p in verify(stores / store)} == names
    opened = open_array(stores / store / array)
    with pytest.raises(StoreError, match="another|damaged"):
        opened[8:10]
    np.testing.assert_array_equal(opened[0:8].shape[0], 8)  # the others are read as before


@pytest.mark.parametrize(
    ("array", "part"),
    [
        ("name", None),
        ("name", RangeByteRequest(0, 9)),
        ("samples", None),
        ("samples", SuffixByteRequest(68)),  # the index
        ("samples", RangeByteRequest(0, 2884)),  # a chunk
        ("samples", RangeByteRequest(0, 2880)),
        ("samples", OffsetByteRequest(2884)),
    ],
)
def test_whatever_zarr_asks_for_is_compared(array: str, part: ByteRequest | None, stores: Path, made: Path) -> None:
    """Each way in which a file of chunks is read, whole or in part, of another file of the same size."""
    path = stores / "stack.zarr"
    wrong, other = shard(path, array), shard(made.parent / "b" / "stack.zarr", array)
    store, key = checked_store(str(path))[0], wrong.relative_to(path).as_posix()

    def get() -> Any:
        return sync(store.get(key, default_buffer_prototype(), part))

    if part is None or (array == "samples" and part != RangeByteRequest(0, 2880)):
        assert get() is not None
    else:  # whose checksum is not among its bytes
        with pytest.raises(StoreError, match="part"):
            get()
    if array == "name":
        shutil.copytree(made / "stack.zarr", stores / "other.zarr")
        other = other_names(stores / "other.zarr")
    assert other.stat().st_size == wrong.stat().st_size
    content = other.read_bytes()
    if part == SuffixByteRequest(68):  # of raw chunks all indexes are alike: here two chunks change places
        index = content[-52:-36] + content[-68:-52] + content[-36:-4]
        content = content[:-68] + index + google_crc32c.value(index).to_bytes(4, "little")
    wrong.write_bytes(content)
    for fresh in (False, True):  # the other one remembers an index
        store = checked_store(str(path))[0] if fresh else store
        with pytest.raises(StoreError, match="damaged"):
            get()


def test_every_value_of_the_metadata_is_vouched_for(stores: Path) -> None:
    """`verify` reports the file of any changed value.

    This test changes eight values in files with manifests, and two values in files with a digest in a manifest.
    `tests/benchmarks/searches/damage_stores.py` tests more.
    """
    rng, missed, n = np.random.default_rng(0), [], 0
    for store in ("scores.zarr", "stack.zarr", "streaming.zarr", "job.report"):
        for path in sorted((stores / store).rglob("*.json")):
            before = path.read_bytes()
            forms = {re.sub("[0-9]+", "0", repr(place)): place for place in json_places(json.loads(before))}
            chosen = rng.permutation(len(forms))[: 8 if path.parent == stores / store else 2]
            for place in (list(forms.values())[i] for i in chosen):
                document = json.loads(before)
                change_value(document, place, rng)
                path.write_text(json.dumps(document, indent=2))
                name = path.relative_to(stores / store).as_posix()
                if path.read_bytes() != before and not any(p.startswith(f"{name}:") for p in verify(stores / store)):
                    missed.append((store, name, place))
                n += 1
            path.write_bytes(before)
    assert missed == []
    assert n > 50


def test_whole_stores_have_no_problems(made: Path, cluster: Any) -> None:
    for store in sorted(p for p in made.iterdir()):
        assert verify(store) == []
        assert verify(store, run=Run(client=cluster)) == []
    assert verify(made / "stack.zarr" / "samples") == []
    assert verify(made / "job.zarr" / "stack") == []


def test_a_stack_that_left_samples_out_is_whole(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 300, 300))
    x[[3, 38]] = np.nan
    np.save(tmp_path / "x.npy", x)
    stack = ingest(tmp_path / "x.npy", tmp_path / "s.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=1))
    assert [name for name, _ in stack.rejected] == ["03", "38"]
    (tmp_path / "s.zarr" / "samples" / "c" / "99").mkdir()  # as a shard leaves that was not needed in the end
    (tmp_path / "s.zarr" / ".DS_Store").write_bytes(b"of a file manager")
    assert verify(tmp_path / "s.zarr") == []
    (tmp_path / "s.zarr" / "notes.txt").write_text("somebody's")
    assert verify(tmp_path / "s.zarr") == ["notes.txt: was not written with this store"]


def test_damage_in_a_store_inside_is_named_from_outside(stores: Path) -> None:
    wrong = shard(stores / "job.zarr" / "stack", "samples")
    wrong.write_bytes(wrong.read_bytes()[:-1])
    for path, name in (
        ("job.zarr", "stack/samples/c/0"),
        ("job.zarr/stack", "samples/c/0"),
        ("job.zarr/stack/samples", "samples/c/0"),
    ):
        (problem,) = verify(stores / path)
        assert problem.startswith(name)
    assert verify(stores / "job.zarr" / "model") == []


def test_verify_ends_with_1_and_sentences(stores: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    for i, content in enumerate((b"{", b"\xff\xfe", b"[]", b"null", b"", b"[" * 100_000, b'{"zarr_format": 9}')):
        name = ("samples/zarr.json", "zarr.json")[i % 2]
        before = (stores / "stack.zarr" / name).read_bytes()
        (stores / "stack.zarr" / name).write_bytes(content)
        assert command(["verify", str(stores / "stack.zarr"), "--scheduler", scheduler]) == 1
        told = capsys.readouterr()
        # Before it, the cluster and the time at which the stage began.
        assert [line for line in told.out.splitlines() if line.startswith(f"{name}: ")]
        assert told.err == ""
        (stores / "stack.zarr" / name).write_bytes(before)


# -- replaced stores


def test_changed_metadata_of_an_array_is_one_problem(stores: Path) -> None:
    zarr.open_array(stores / "floats.zarr" / "samples", mode="a").attrs["mine"] = 1
    assert verify(stores / "floats.zarr") == ["samples/zarr.json: is not the file that was written there"]


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(stores: Path, tmp_path: Path) -> None:
    for name in ("samples/c/0/0/0/0", "samples/zarr.json", "zarr.json"):
        shutil.copytree(stores / "stack.zarr", tmp_path / "s.zarr")
        (tmp_path / "s.zarr" / name).unlink()
        os.mkfifo(tmp_path / "s.zarr" / name)
        assert any(problem.startswith(name) for problem in verify(tmp_path / "s.zarr"))
        with pytest.raises((StoreError, DataError)):
            open_stack(tmp_path / "s.zarr").samples[...]
        shutil.rmtree(tmp_path / "s.zarr")


def test_a_model_that_was_replaced_while_it_was_used(stores: Path, tmp_path: Path) -> None:
    lazy = dpca.open_scores(stores / "scores.zarr", model=stores / "cells.zarr").scores
    shutil.rmtree(stores / "scores.zarr")
    shutil.copytree(stores.parent / "a" / "job.zarr", stores / "scores.zarr")
    with pytest.raises(StoreError, match="replaced"):
        lazy.compute(scheduler="synchronous")
    fit_store(open_stack(stores / "stack.zarr"), tmp_path / "m.zarr", CellPCA(2, cell_shape=8))


def test_a_store_that_was_replaced_is_not_read_for_the_one_that_was_opened(stores: Path, made: Path) -> None:
    stack = open_stack(stores / "stack.zarr")
    scores = dpca.open_scores(stores / "scores.zarr", model=stores / "cells.zarr")
    model = CellPCA.load(stores / "cells.zarr")
    for name in ("stack.zarr", "scores.zarr"):
        shutil.rmtree(stores / name)
        shutil.copytree(made.parent / "b" / name, stores / name)
    tries: list[Callable[[], Any]] = [
        lambda: CellPCA(2, cell_shape=8).fit(stack),
        lambda: StreamingPCA(2).fit(stack.samples),
        lambda: model.transform(stack).compute(scheduler="synchronous"),
        lambda: transform_store(stack, stores / "cells.zarr", stores.parent / "new.zarr"),
        lambda: scores.scores.compute(scheduler="synchronous"),
    ]
    for attempt in tries:
        with pytest.raises(StoreError, match="replaced"):
            attempt()
    assert not (stores.parent / "new.zarr").exists()


@pytest.mark.parametrize(
    "path", ["stack.zarr/samples/c", "stack.zarr/zarr.json", "stack.zarr/nothing", "weird://x", "x\0y", "x" * 300]
)
def test_what_is_no_store_is_no_damage(path: str, made: Path) -> None:
    with pytest.raises((DataError, StoreError)):
        verify(path if "://" in path else made / path)


def test_a_finished_output_that_is_damaged_is_not_taken_for_done(
    stores: Path, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, model, scores = (str(stores / f"{name}.zarr") for name in ("stack", "cells", "scores"))
    again = stores.parent / "again.zarr"
    line = ["reconstruct", model, scores, str(again), "--scheduler", scheduler]
    assert command(line) == 0
    whole = {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()}
    for name in ("zarr.json", "samples/zarr.json", "name/checksums.json"):
        content = (again / name).read_bytes()
        (again / name).write_bytes(content + b" ")
        capsys.readouterr()
        assert command(line) == 4
        assert "--overwrite" in capsys.readouterr().err
        assert command([*line, "--overwrite"]) == 0
        assert {p.relative_to(again): p.read_bytes() for p in again.rglob("*") if p.is_file()} == whole
    assert command(["verify", str(again), "--scheduler", scheduler]) == 0
    assert open_stack(stack).shape == open_stack(again).shape
