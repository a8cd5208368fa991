"""Job files: outputs are made once, resumed and logged; an invalid file is rejected as a whole."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import open_compressed
from dpca.cli import main, work
from dpca.cli.job import _clean
from dpca.cli.job_file import read_job_file
from dpca.report.record import read_report
from dpca.storage import DataError, create_synthetic, verify
from dpca.storage.integrity.manifest import write_folder_manifest
from dpca.storage.transaction.claim import Claim
from tests.conftest import write_images

pytestmark = pytest.mark.usefixtures("small_pictures")
SECRET = "correct-horse"


def events(argv: list[str], into: io.StringIO | None = None) -> tuple[int, list[dict[str, Any]]]:
    """Run `dpca job run`; return its exit code and what it logged."""
    into = into or io.StringIO()
    with redirect_stdout(into):
        code = main(["job", "run", *argv])
    assert SECRET not in into.getvalue()
    return code, [json.loads(line) for line in into.getvalue().splitlines()]


@pytest.fixture
def job(tmp_path: Path, scheduler: str) -> Path:
    """A job of two archives, each of which becomes a store."""
    (tmp_path / "in").mkdir()
    photos = sorted(write_images(tmp_path / "photos", 40, (36, 32, 3)).iterdir())
    for name, some in {"day": photos[:20], "night": photos[20:]}.items():
        with tarfile.open(tmp_path / "in" / f"{name}.tar", "w") as tar:
            for photo in some:
                tar.add(photo, photo.name)
    (tmp_path / "job.toml").write_text(
        'inputs = "in/*.tar"\noutput = "out/{name}.zarr"\nretries = 1\ncell = 8\ncomponents = 20\n'
        f'scheduler = "{scheduler}"\nstorage-option = ["secret={SECRET}"]\n[target]\npsnr = 32\n'
    )
    return tmp_path / "job.toml"


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_everything_is_made_once_and_recorded(job: Path) -> None:
    folder = job.parent
    code, first = events([str(job)])
    assert code == 0
    assert [event["event"] for event in first].count("done") == 2
    assert first[0]["event"] == "start"
    assert first[-1] | {"time": ""} == {"time": "", "event": "end", "done": 2, "skipped": 0, "failed": 0, "code": 0}
    assert {"ingest", "fit", "choose step", "encode", "report"} == {
        event["stage"] for event in first if event["event"] == "stage"
    }
    record = json.loads((folder / "job.record.json").read_text())
    for name in ("day", "night"):
        store, entry = folder / "out" / f"{name}.zarr", record[str(folder / "out" / f"{name}.zarr")]
        assert verify(store) == []
        assert open_compressed(store).shape == (20, 36, 32, 3)
        assert entry["inputs"] == [str(folder / "in" / f"{name}.tar")]
        assert entry["zarr.json"] == blake2b((store / "zarr.json").read_bytes(), digest_size=16).hexdigest()
        assert entry["bytes_compressed"] == sum(p.stat().st_size for p in store.rglob("*") if p.is_file())
    before = tree(folder)
    code, second = events([str(job)])
    assert (code, [event["event"] for event in second]) == (0, ["start", "skipped", "skipped", "end"])
    assert tree(folder) == before
    # A new input is made, a broken one is reported, and the rest stays.
    (folder / "in" / "day.tar").rename(folder / "in" / "another.tar")
    with tarfile.open(folder / "in" / "broken.tar", "w") as tar:
        (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff")
        tar.add(folder / "broken.jpg", "broken.jpg")
    code, third = events([str(job)])
    assert code == 3
    (failed,) = (event for event in third if event["event"] == "failed")
    assert failed["output"] == str(folder / "out" / "broken.zarr")
    assert (failed["code"], failed["again"]) == (3, False)
    assert (third[-1]["done"], third[-1]["skipped"], third[-1]["failed"]) == (1, 1, 1)
    assert not (folder / "out" / "broken.zarr").exists()


def test_only_the_first_output_begins_with_the_program(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.time() - 1000
    monkeypatch.setattr(work, "started", lambda: began)
    assert events([str(job)])[0] == 0
    reports = [read_report(job.parent / "out" / f"{name}.report") for name in ("day", "night")]
    first, second = (one["stages"]["start"]["seconds"] for one in reports)
    assert second < 1000 <= first


def test_the_plan_of_a_dry_run_is_near_what_comes_out(job: Path) -> None:
    before = tree(job.parent)
    code, told = events([str(job), "--dry-run"])
    assert code == 0
    assert tree(job.parent) == before
    events([str(job)])
    record = json.loads((job.parent / "job.record.json").read_text())
    assert [plan["event"] for plan in told] == ["plan", "plan"]
    for plan in told:
        assert plan["samples"] == 20
        assert plan["bytes_decoded"] == 20 * 36 * 32 * 3
        assert set(plan["seconds"]) == {"ingest", "fit", "encode"}
        # Of a store this small, metadata is most, which is estimated as that of a large one.
        assert plan["bytes_compressed"] == pytest.approx(record[plan["output"]]["bytes_compressed"], abs=8_000)
    assert [event["event"] for event in events([str(job), "--dry-run"])[1]] == ["skipped", "skipped"]


def test_a_long_stage_and_a_stop_are_events(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_HEARTBEAT", 0.01)

    class StopsTheRun(io.StringIO):
        def write(self, text: str) -> int:
            if '"progress"' in text and '"encode"' in text:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(text)

    code, told = events([str(job)], StopsTheRun())
    assert code == 143
    assert (told[-1]["event"], told[-1]["why"]) == ("stopped", "SIGTERM")
    beats = [event for event in told if event["event"] == "progress"]
    for beat in beats:
        assert 0 <= beat["done"] <= beat["total"]
    assert beats[-1]["stage"] == "encode"
    assert events([str(job)])[1][-1]["done"] == 2


def test_two_runs_never_meet_and_what_is_busy_is_tried_again(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = Claim(job.parent / "job.record.json.partial", "the record")
    assert events([str(job)]) == (7, [])
    assert "another run" in capsys.readouterr().err
    held.end()
    output = Claim(job.parent / "out" / "day.zarr.partial", "out/day.zarr")

    class EndsWhenTold(io.StringIO):
        def write(self, text: str) -> int:
            if '"failed"' in text:
                output.end()
            return super().write(text)

    code, told = events([str(job)], EndsWhenTold())
    (failed,) = (event for event in told if event["event"] == "failed")
    assert (code, failed["code"], failed["again"], told[-1]["done"]) == (0, 7, True, 2)


def test_a_job_that_writes_among_its_inputs_runs_night_after_night(job: Path) -> None:
    inputs = job.parent / "in"
    text = job.read_text().replace('"in/*.tar"', '["in/*"]').replace("out/{name}", "in/{name}")
    job.write_text(f'record = "in/record.json"\n{text}')
    assert [event["event"] for event in events([str(job)])[1]].count("done") == 2
    before = tree(job.parent)
    code, second = events([str(job)])
    assert (code, [event["event"] for event in second]) == (0, ["start", "skipped", "skipped", "end"])
    assert tree(job.parent) == before
    # One input is new, one is gone, and runs were killed before and after their reports.
    (inputs / "day.tar").rename(inputs / "late.tar")
    (inputs / "late.report").mkdir()
    write_folder_manifest(inputs / "late.report", "report", {"report.json": b""})
    for name in ("late.zarr.partial", "other.zarr.partial"):
        Claim(inputs / name, name).release()
    for pattern, made in (("in/*", 1), ("in/**/*", 0)):
        job.write_text(job.read_text().replace("in/*", pattern))
        code, told = events([str(job)])
        assert (code, told[-1]["done"], told[-1]["skipped"]) == (0, made, 2 - made)
    assert {Path(name).name for name in json.loads((inputs / "record.json").read_text())} == {
        *("day.zarr", "late.zarr", "night.zarr"),
    }


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    np.save(tmp_path / "a.npy", np.zeros((3, 8, 8), np.uint8))
    (tmp_path / "sub" / "a").mkdir(parents=True)
    np.save(tmp_path / "sub" / "a" / "b.npy", np.zeros((3, 8, 8), np.uint8))
    yield tmp_path


GOOD = {"inputs": '"a.npy"', "output": '"b.zarr"', "target": "{psnr = 36}"}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"inputs": None}, "missing key: inputs"),
        ({"inputs": "3"}, "inputs is 3"),
        ({"inputs": '"*.tar"'}, r"inputs: no file matches"),
        ({"output": "[1]"}, "output is"),
        ({"target": "{psnr = 3, ssim = 0.9}"}, "target is"),
        ({"target": '"best"'}, "low, medium, high"),
        ({"target": "{psnr = -3}"}, "quality: 'psnr=-3' is not"),
        ({"retries": "true"}, "retries is True"),
        ({"retries": "-1"}, "retries is -1"),
        ({"cell": '"ten"'}, "cell: 'ten' is not"),
        ({"color": '"blue"'}, "color: invalid choice"),
        ({"crop": '"3x4"', "resize": '"3x4"'}, "not allowed with"),
        ({"quality": '"high"'}, "target = "),
        ({"nonsense": "1"}, "unknown key: nonsense"),
        ({"inputs": None, "input": '"a.npy"'}, "unknown key: input:"),
        ({"target": None, "tarjet": "{psnr = 36}"}, "unknown key: tarjet"),
        ({"overlap": "false"}, "overlap: expected one argument"),
        ({"key": "{a = 1}"}, "key is a table"),
        ({"inputs": '["a.npy", "a.npy"]', "output": '"{name}.zarr"'}, "output is .* for both"),
        ({"inputs": '"*.npy"', "output": '"a.npy"'}, "'.*a.npy' matches the output"),
        ({"inputs": '"*.npy"', "output": '"{name}.npy/x.zarr"'}, "next run"),
        ({"inputs": '"sub/*"', "output": '"sub/made/{name}.zarr"'}, "next run"),
        ({"inputs": '"sub/*"', "output": '"sub/{name}"'}, "'.*sub/a' matches the output"),
    ],
)
def test_errors_name_the_key(image: Path, said: dict[str, Any], why: str) -> None:
    path = image / "job.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in (GOOD | said).items() if value is not None))
    with pytest.raises(DataError, match=rf"^'{path}'.*{why}"):
        read_job_file(str(path))


#: Where a record must not go, and a part of the error: the input is ``z.zarr``, the output ``b.zarr``.
RECORDS = {
    "an input's metadata": ("z.zarr/zarr.json", "input"),
    "beside an input's files": ("z.zarr/record.json", "input"),
    "an input": ("z.zarr", "input"),
    "a folder that holds one": (".", "input"),
    "a finished store's metadata": ("done.zarr/zarr.json", "finished store"),
    "in a finished store": ("done.zarr/record.json", "finished store"),
    "an output": ("b.zarr", "the output"),
    "in an output": ("b.zarr/record.json", "the output"),
    "a work folder": ("b.zarr.partial", "the output"),
    "a lock that is an output": ("b", "not a record|the output"),
    "a report's numbers": ("b.report/report.json", "the output"),
    "another's JSON": ("another.json", "not a record"),
    "an empty object": ("empty.json", "not a record"),
    "the job itself": ("job.toml", "not a record"),
    "a folder": ("folder", "cannot be replaced|not a record"),
    "a device": ("/dev/null", "cannot be replaced"),
    "a link": ("link.json", "is a link"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_replaces_nothing_but_a_record(image: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    record, why = RECORDS[what]
    zarr.create_array(image / "z.zarr", data=np.zeros((3, 8, 8), np.uint8))
    create_synthetic(image / "done.zarr", model="textures", n_samples=3, sample_shape=(8, 8))
    (image / "another.json").write_text('{"a": {"inputs": [], "content": "x"}}')
    (image / "empty.json").write_text("{}")
    (image / "link.json").symlink_to("another.json")
    (image / "folder").mkdir()
    lines = GOOD | {"inputs": '"z.zarr"', "record": f'"{record}"'}
    if what == "a lock that is an output":
        lines["output"] = '"b.partial"'
    (image / "job.toml").write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    before = tree(image), sorted(image.rglob("*"))
    for argv in ([], ["--dry-run"]):
        assert events([str(image / "job.toml"), *argv]) == (4, [])
        error = capsys.readouterr().err
        assert re.search(why, error)
        assert error.count("\n") == 1
    assert (tree(image), sorted(image.rglob("*"))) == before


def test_secrets_in_addresses_are_not_logged() -> None:
    told = _clean({"a": ["https://me:pw@host/x?X-Amz-Signature=ab3", "s3://bucket/photos?.jpg"]})
    assert told == {"a": ["https://host/x", "s3://bucket/photos?.jpg"]}
