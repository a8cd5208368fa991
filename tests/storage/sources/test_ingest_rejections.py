"""Images that are refused while a stack is made: by name at once, or left out without a gap."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np
import pytest

from dpca.storage.arrays.layout import Layout
from dpca.storage.cf import REMEDY
from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.integrity.verify import verify
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from dpca.storage.stack import open_stack
from dpca.storage.survey import ReadOptions
from tests.storage.sources.ingesting import (
    BROKEN,
    INGEST,
    SOURCES,
    WRITER,
    Breaking,
    Interrupted,
    bad_files,
    noted_writes,
    stacked,
)
from tests.storage.sources.made_sources import (
    contents,
    encoded,
    pixels,
    truth,
    write_folder,
)


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize("kind", ["folder", "tgz"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_bad_image_in_order_is_named(kind: str, threads: int, tmp_path: Path) -> None:
    other = encoded(pixels(0, 30, 20), "JPEG")
    source = SOURCES[kind](tmp_path, bad_files(40, {21: other, 22: BROKEN, 39: b""}))
    with pytest.raises(DataError) as caught:
        ingest(source, tmp_path / "out.zarr", run=Run(threads=threads))
    for words in ("'img/000022.jpg'", "30 x 20 pixels", "24 x 20", "'img/000001.jpg'", "--resize", "--on-error skip"):
        assert words in str(caught.value)
    assert not (tmp_path / "out.zarr").exists()


PATTERNS: dict[str, set[int]] = {
    "first": {0},
    "last": {22},
    "one": {9},
    "a whole shard": {4, 5, 6, 7},
    "two apart": {2, 17},
    "every third": set(range(0, 23, 3)),
    "all but one": set(range(23)) - {13},
    "last shard vanishes": {1, 2, 21},
}


@pytest.mark.usefixtures("_many_shards")
@pytest.mark.parametrize(
    ("kind", "pattern"),
    # A source that is read in its order is found the same gaps in: some of them are enough.
    [("zip", name) for name in PATTERNS] + [("tgz", name) for name in ("first", "every third", "last shard vanishes")],
)
def test_skip_leaves_no_gap(kind: str, pattern: str, tmp_path: Path) -> None:
    bad = PATTERNS[pattern]
    files = bad_files(23, dict.fromkeys(bad, BROKEN))
    stack = ingest(
        SOURCES[kind](tmp_path, files), tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=2)
    )
    good = {name: payload for i, (name, payload) in enumerate(files.items()) if i not in bad}
    np.testing.assert_array_equal(stack.samples[:], stacked(good))
    assert stack.names.tolist() == list(good)
    assert [name for name, _ in stack.rejected] == [name for name in files if name not in good]
    assert all(reason.startswith("is broken, truncated") for _, reason in stack.rejected)
    assert stack.source["count"] == 23
    assert verify(tmp_path / "out.zarr") == []
    chunks = {path.name for path in (tmp_path / "out.zarr" / "samples" / "c").iterdir()}
    assert chunks == {str(shard) for shard in range(-(-len(good) // 4))}


@pytest.mark.usefixtures("_many_shards")
def test_a_rare_bad_image_costs_only_what_is_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = noted_writes(monkeypatch)
    source = write_folder(tmp_path / "t", bad_files(120, {10: BROKEN}))
    ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=2))
    assert len(written) <= 30 + 4


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_images_that_are_decoded_while_a_shard_is_written(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WRITER, "_DECODED_BYTES", at_once * 24 * 20 * 3)
    written = noted_writes(monkeypatch)
    bad = {1, 9, 10, 22}
    files = bad_files(23, dict.fromkeys(bad, BROKEN))
    source = write_folder(tmp_path / "t", files)
    stack = ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"), run=Run(threads=1))
    good = [payload for i, payload in enumerate(files.values()) if i not in bad]
    np.testing.assert_array_equal(stack.samples[:], np.stack(list(map(truth, good))))
    assert len(stack.rejected) == len(bad)
    assert len(written) <= 4  # two shards in two passes: each finds all its bad images at once
    assert verify(tmp_path / "out.zarr") == []


@pytest.mark.parametrize("at_once", [1, 100])
def test_the_range_is_that_of_all_images(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITER, "_DECODED_BYTES", at_once * 24 * 20 * 2)
    values = np.full((5, 24, 20), 1000, np.uint16)
    values[1, 3, 4], values[2, 0, 0] = 7, 60_000
    source = write_folder(tmp_path / "t", {f"{i}.png": encoded(image) for i, image in enumerate(values)})
    stack = ingest(source, tmp_path / "out.zarr")
    assert stack.data_range == (7, 60_000)
    np.testing.assert_array_equal(stack.samples[:], values)


@pytest.mark.usefixtures("_many_shards")
def test_labels_follow_what_is_kept(tmp_path: Path) -> None:
    values = np.arange(11 * 6, dtype=np.float64).reshape(11, 6)
    values[[2, 7], 3] = np.nan
    np.savez(tmp_path / "a.npz", values=values, labels=np.arange(11))
    with pytest.raises(DataError) as caught:
        ingest(tmp_path / "a.npz", tmp_path / "out.zarr")
    for words in ("sample 02 of 'a.npz/values'", "nan at (3,)", REMEDY, "--on-error skip"):
        assert words in str(caught.value)
    stack = ingest(tmp_path / "a.npz", tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    keep = [0, 1, 3, 4, 5, 6, 8, 9, 10]
    np.testing.assert_array_equal(stack.samples[:], values[keep])
    assert stack.labels is not None
    assert stack.labels.tolist() == keep
    assert stack.data_range == (0.0, 65.0)
    assert [name for name, _ in stack.rejected] == ["02", "07"]
    assert all("nan at (3,)" in reason for _, reason in stack.rejected)


def test_a_stack_with_gaps_is_not_what_a_strict_run_asks_for(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "t", bad_files(5, {2: BROKEN}))
    ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    assert ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip")).n_samples == 4
    with pytest.raises(DataError, match=r"rejected.*img/000003\.jpg"):
        ingest(source, tmp_path / "out.zarr")


@pytest.mark.usefixtures("_many_shards")
def test_a_stopped_run_can_go_on_by_skipping(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "t", bad_files(30, {17: BROKEN}))
    with pytest.raises(DataError, match="000018"):
        ingest(source, tmp_path / "out.zarr")
    stack = ingest(source, tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    ingest(source, tmp_path / "whole.zarr", reading=ReadOptions(on_error="skip"))
    assert stack.n_samples == 29
    assert contents(tmp_path / "out.zarr") == contents(tmp_path / "whole.zarr")


@pytest.mark.usefixtures("_many_shards")
def test_a_skipping_run_that_was_interrupted_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_folder(tmp_path / "t", bad_files(30, {5: BROKEN, 17: b""}))
    ingest(source, tmp_path / "whole.zarr", reading=ReadOptions(on_error="skip"))
    with pytest.raises(Interrupted):
        ingest(
            Breaking(open_reader(source), 25),
            tmp_path / "out.zarr",
            reading=ReadOptions(on_error="skip"),
            run=Run(threads=1),
        )
    # Recorded rejections are not searched again, and are errors for a run that stops at errors.
    with pytest.raises(DataError, match=r"img/000006\.jpg"):
        ingest(Breaking(open_reader(source), 99), tmp_path / "out.zarr")
    ingest(Breaking(open_reader(source), 99), tmp_path / "out.zarr", reading=ReadOptions(on_error="skip"))
    stack, whole = open_stack(tmp_path / "out.zarr"), open_stack(tmp_path / "whole.zarr")
    np.testing.assert_array_equal(stack.samples[:], whole.samples[:])
    assert stack.rejected == whole.rejected
    assert len(stack.rejected) == 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("random_access", [True, False])
def test_rejections_and_interruptions_in_any_order(
    seed: int, random_access: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    n, rows = chance.randrange(1, 30), chance.choice([1, 2, 3, 5])
    bad = sorted(chance.sample(range(n), chance.randrange(n) // chance.choice([1, 4])))
    values = np.arange(n * 2, dtype=np.float64).reshape(n, 2)
    values[bad, 1] = np.nan
    (np.savez if random_access else np.savez_compressed)(tmp_path / "a.npz", values=values)
    monkeypatch.setattr(INGEST, "choose_layout", lambda *_: Layout((1, 2), (rows, 2)))
    whole = ingest(
        tmp_path / "a.npz",
        tmp_path / "whole",
        reading=ReadOptions(on_error="skip"),
        run=Run(threads=chance.choice([1, 3])),
    )
    np.testing.assert_array_equal(whole.samples[:], np.delete(values, bad, 0))
    assert [int(name) for name, _ in whole.rejected] == bad
    for _ in range(3):
        reader = Breaking(open_reader(tmp_path / "a.npz"), chance.randrange(n + 1))
        with contextlib.suppress(Interrupted):
            ingest(
                reader, tmp_path / "out", reading=ReadOptions(on_error="skip"), run=Run(threads=chance.choice([1, 3]))
            )
    ingest(open_reader(tmp_path / "a.npz"), tmp_path / "out", reading=ReadOptions(on_error="skip"))
    resumed = open_stack(tmp_path / "out")
    assert resumed.rejected == whole.rejected
    # The interrupted reader differs only in the name of its source.
    mine, theirs = contents(tmp_path / "out"), contents(tmp_path / "whole")
    del mine["zarr.json"], theirs["zarr.json"]
    assert mine == theirs
