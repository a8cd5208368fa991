"""Every command on a disk that is read-only or full: one error message, exit code 4, no output."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dpca.cli import main
from dpca.jobs import encode_store, fit_store, transform_store
from dpca.models.cells.cell_pca import CellPCA
from dpca.storage import ingest, open_stack
from dpca.storage.run import Run
from tests.conftest import smooth_images

FIT = ["--cell", "8", "--components", "2"]
# IN is a file on the failing disk; OUT is the output, which lies there, too.
COMMANDS = {
    "ingest": ["ingest", "a.npy", "OUT"],
    "synthetic": ["synthetic", "OUT", "--samples", "9", "--shape", "8x8"],
    "fit": ["fit", "s", "OUT", *FIT],
    "fit --live": ["fit", "s", "fitted", *FIT, "--live", "OUT"],
    "transform": ["transform", "m", "s", "OUT"],
    "encode": ["encode", "m", "s", "OUT", "--psnr", "18"],
    "reconstruct": ["reconstruct", "m", "sc", "OUT"],
    "scores": ["scores", "s", "OUT", *FIT],
    "compress": ["compress", "a.npy", "OUT", "--quality", "psnr=18", "--cell", "8"],
    "compare --plot": ["compare", "IN", "s", "--plot", "OUT", "--sample", "2"],
    "append": ["append", "IN", "b.npy", "--drift", "accept"],
    "watch": ["watch", "s", "OUT", "--components", "2"],
    "plan": ["plan", "a.npy", *FIT, "--workers", "1"],
    "job run": ["job", "run", "output.toml"],
    "job run, record": ["job", "run", "record.toml"],
}
READING = {"info": ["info", "IN"], "verify": ["verify", "IN"], "compare": ["compare", "IN", "s", "--sample", "2"]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    images = smooth_images(24, (16, 16))
    np.save(folder / "a.npy", images)
    np.save(folder / "b.npy", smooth_images(8, (16, 16), seed=1))
    stack = ingest(folder / "a.npy", folder / "s", run=Run(threads=1))
    fit_store(stack, folder / "m", CellPCA(2, cell_shape=8, random_state=0))
    transform_store(open_stack(folder / "s"), folder / "m", folder / "sc")
    encode_store(open_stack(folder / "s"), folder / "m", folder / "c", psnr=18.0)
    return folder


@pytest.fixture(scope="module", params=["read-only", "full"])
def disk(inputs: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk with a compressed store on it, to which nothing more can be written."""
    folder = tmp_path_factory.mktemp("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    shutil.copytree(inputs / "c", folder / "c")
    if request.param == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    else:
        with pytest.raises(OSError, match="space"), open(folder / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def run(
    inputs: Path, disk: Path, scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], int]:
    """Run a command in a folder of the inputs, with temporary files on the disk."""
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    for name, output, record in (("output", disk / "out", "r.json"), ("record", "out", disk / "out")):
        Path(f"{name}.toml").write_text(
            f'inputs = "a.npy"\noutput = "{output}"\nrecord = "{record}"\nscheduler = "{scheduler}"\ncell = 8\n'
            f"[target]\npsnr = 18\n"
        )

    def command(argv: list[str]) -> int:
        alone = argv[0] in ("synthetic", "compare", "plan", "job", "info", "watch")
        places = {"IN": str(disk / "c"), "OUT": str(disk / "out")}
        return main([places.get(one, one) for one in argv] + ([] if alone else ["--scheduler", scheduler]))

    return command


def _everything(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("name", COMMANDS)
def test_what_cannot_be_written_is_one_sentence_and_nothing_is_left(
    name: str, run: Callable[[list[str]], int], disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _everything(disk)
    code, told = run(COMMANDS[name]), capsys.readouterr()
    assert code == 4, told
    errors = told.err.splitlines() if not name.startswith("job run") or told.err else ["error: in the log"]
    assert len(errors) == 1
    assert errors[0].startswith("error: ")
    assert "Traceback" not in told.out
    left = _everything(disk)
    assert {path: content for path, content in left.items() if not path.startswith("out.partial")} == before
    for path in set(left) - set(before):
        shutil.rmtree(disk / path, ignore_errors=True)


@pytest.mark.parametrize("name", READING)
def test_what_only_reads_needs_no_room(name: str, run: Callable[[list[str]], int]) -> None:
    assert run(READING[name]) == 0
