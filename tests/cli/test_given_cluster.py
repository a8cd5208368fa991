"""Commands on a cluster of real processes that fails, or changes, while they run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import dask
import numpy as np
import pytest

from dpca.cli import main
from dpca.pipelines.celeba_cpca import main as run_job
from tests.benchmarks.searches.stop_anywhere import DPCA, ROOT
from tests.helpers.forked import Programs
from tests.helpers.given_cluster import GivenCluster

pytestmark = pytest.mark.usefixtures("small_pictures")

JOB = [sys.executable, str(ROOT / "pipelines" / "celeba_cpca.py")]
MODEL = ["--cell", "12", "--components", "5"]


@pytest.fixture(scope="module")
def made(scheduler: str, tmp_path_factory: pytest.TempPathFactory, small_pictures: None) -> Path:
    """A source, and one store of each kind made from it by an undisturbed cluster of two workers."""
    folder = tmp_path_factory.mktemp("made")
    values = np.random.default_rng(0).integers(0, 256, (400, 96, 96, 3), dtype=np.uint8)
    np.save(folder / "a.npy", values)
    where = ["--scheduler", scheduler]
    job = ["--source", str(folder / "a.npy"), "--output", str(folder / "calm.zarr"), "--reconstruct", *MODEL]
    assert run_job([*job, *where]) == 0
    for command in (_ingest, _fit, _transform):
        assert main([*command(folder, folder)[len(DPCA) :], *where]) == 0
    return folder


def _ingest(made: Path, out: Path) -> list[str]:
    return [*DPCA, "ingest", str(made / "a.npy"), str(out / "stack.zarr"), "--cell", "12"]


def _fit(made: Path, out: Path) -> list[str]:
    return [*DPCA, "fit", str(made / "stack.zarr"), str(out / "model.zarr"), *MODEL]


def _transform(made: Path, out: Path) -> list[str]:
    return [*DPCA, "transform", str(made / "model.zarr"), str(made / "stack.zarr"), str(out / "scores.zarr")]


def _verify(made: Path, out: Path) -> list[str]:
    return [*DPCA, "verify", str(made / "stack.zarr")]


def _job(made: Path, out: Path) -> list[str]:
    return [*JOB, "--source", str(made / "a.npy"), "--output", str(out / "out.zarr"), "--reconstruct", *MODEL]


def _lines(programs: Programs, argv: list[str]) -> Iterator[str | subprocess.CompletedProcess[str]]:
    """Yield the lines that a program prints, then how it ended."""
    with programs.start(argv) as running:
        yield from running.stdout
        errors = running.stderr.read()
        code = running.wait()
    yield subprocess.CompletedProcess(argv, code, "", errors)


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# One that hands out single calls, one that maps over shards; the next test kills it while a fold runs. What each way of
# asking a lost scheduler says is tested in `tests/storage/remote/test_clusters.py`.
@pytest.mark.parametrize("command", [_ingest, _transform])
def test_a_scheduler_that_is_killed(
    command: Callable[[Path, Path], list[str]], made: Path, tmp_path: Path, programs: Programs
) -> None:
    with GivenCluster(1, tmp_path / "log", programs) as given:
        for line in _lines(programs, [*command(made, tmp_path), "--scheduler", given.address]):
            if isinstance(line, str) and " worker" in line:
                given.scheduler.kill()
    assert not isinstance(line, str)
    assert line.returncode == 6, line.stderr
    assert line.stderr.startswith(f"error: the Dask scheduler at '{given.address}' was lost")
    assert line.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.zarr"))


def test_what_was_finished_before_the_scheduler_was_killed_is_kept(
    made: Path, tmp_path: Path, scheduler: str, programs: Programs
) -> None:
    with GivenCluster(2, tmp_path / "log", programs) as given:
        for line in _lines(programs, [*_job(made, tmp_path), "--scheduler", given.address]):
            if isinstance(line, str) and line.startswith("fit "):
                given.scheduler.kill()
    assert not isinstance(line, str)
    assert line.returncode == 6, line.stderr
    said = list(_lines(programs, [*_job(made, tmp_path), "--scheduler", scheduler]))
    assert said[-1].returncode == 0, said[-1]  # type: ignore[union-attr]
    assert any("unfinished run" in line for line in said if isinstance(line, str))
    # The table at the end, which begins with the samples, names every stage.
    fit_description = takewhile(lambda line: isinstance(line, str) and not line.startswith("samples "), said)
    assert not any(str(line).startswith("ingest ") for line in fit_description)
    assert _tree(tmp_path / "out.zarr") == _tree(made / "calm.zarr")


def test_workers_that_leave_and_workers_that_join_change_nothing(
    made: Path, tmp_path: Path, programs: Programs
) -> None:
    left = 0
    with GivenCluster(2, tmp_path / "log", programs) as given:
        for line in _lines(programs, [*_job(made, tmp_path), "--scheduler", given.address]):
            if isinstance(line, str) and line.startswith(("ingest ", "fit ", "write ")):
                given.workers[left].send_signal(signal.SIGKILL if left % 2 else signal.SIGTERM)
                left += 1
                given.add_worker()
    assert not isinstance(line, str)
    assert (line.returncode, line.stderr) == (0, "")
    assert left >= 3
    assert _tree(tmp_path / "out.zarr") == _tree(made / "calm.zarr")


_WITHOUT = """
import sys


class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            raise ModuleNotFoundError("No module named '{name}'", name=name)


sys.meta_path.insert(0, Without())
"""


def test_workers_without_this_package_or_with_a_part_of_it(made: Path, tmp_path: Path, programs: Programs) -> None:
    """Workers that cannot import it, or one of its modules, however it is installed here."""
    with GivenCluster(0, tmp_path / "log", programs) as given:
        for name in ("dpca", "dpca.storage.remote.tasks"):
            shadow = tmp_path / f"without-{name}"
            shadow.mkdir()
            (shadow / "sitecustomize.py").write_text(_WITHOUT.format(name=name))
            worker = given.add_worker(PYTHONPATH=str(shadow))
            *_, ended = _lines(programs, [*_verify(made, tmp_path), "--scheduler", given.address])
            assert not isinstance(ended, str)
            assert ended.returncode == 6, ended.stderr
            assert "cannot import" in ended.stderr
            assert ended.stderr.count("\n") == 1, ended.stderr
            given.remove_worker(worker)


def test_a_cluster_without_workers(
    made: Path, tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        GivenCluster(0, tmp_path / "log", programs) as given,
        dask.config.set({"distributed.scheduler.no-workers-timeout": "1 s"}),
    ):
        assert main([*_verify(made, tmp_path)[len(DPCA) :], "--scheduler", given.address]) == 6
    said = capsys.readouterr().err
    assert said.startswith(f"error: the Dask scheduler at '{given.address}' has had no workers for")
    assert said.count("\n") == 1


def test_two_commands_at_one_output(made: Path, tmp_path: Path, scheduler: str, programs: Programs) -> None:
    first = programs.start([*_ingest(made, tmp_path), "--scheduler", scheduler])
    lock = tmp_path / "stack.zarr.partial" / "lock"
    while not lock.exists():
        assert first.poll() is None
        time.sleep(0.005)
    first.send_signal(signal.SIGSTOP)
    other = [*DPCA, "ingest", str(made / "a.npy"), str(tmp_path / "stack.zarr"), "--cell", "7", "--overwrite"]
    *_, second = _lines(programs, [*other, "--scheduler", scheduler])
    first.send_signal(signal.SIGCONT)
    assert not isinstance(second, str)
    assert second.returncode == 7, second.stderr
    assert "another run" in second.stderr
    assert second.stderr.count("\n") == 1
    with first:
        first.stdout.read()
    assert first.returncode == 0
    assert _tree(tmp_path / "stack.zarr") == _tree(made / "stack.zarr")
