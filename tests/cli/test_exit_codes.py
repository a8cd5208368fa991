"""Every documented exit code occurs, with one message, and no other code does."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpca.cli import main, running
from dpca.cli.running import run_program, say
from dpca.engine.folds.plan import PlanError
from dpca.engine.folds.stopping import INTERRUPTED, STOPPED, Stopped
from dpca.pipelines import (
    celeba_cpca,
    convergence_report,
    lsun_streaming,
    partition_report,
    reproduce_kernel,
    reproduce_streaming,
)
from dpca.storage import ClusterError, DataError, StoreError
from dpca.storage.errors import BusyError, ReplacedError
from tests.benchmarks.searches.stop_anywhere import DPCA, ROOT
from tests.cli.bad_cases import make_stack

PROGRAMS = [celeba_cpca, convergence_report, lsun_streaming, partition_report, reproduce_kernel, reproduce_streaming]
DOCUMENTED = {int(code) for codes in running.MEANINGS for code in re.findall(r"\d+", codes)}


def raising(error: BaseException) -> Callable[[], int]:
    def job() -> int:
        raise error

    return job


def test_the_help_names_every_code_that_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert {0, 1, 2, 3, 4, 5, 6, 70, 129, 141} <= DOCUMENTED
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out.split("exit codes:")[1]
    assert {int(code) for code in re.findall(r"\d+", told)} == DOCUMENTED


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (DataError("a is b: do c"), 3, "a is b: do c"),
        (StoreError("a is b: do c"), 4, "a is b: do c"),
        (BusyError("a is b: do c"), 7, "a is b: do c"),
        (ReplacedError("a is b: do c"), 7, "a is b: do c"),
        (PlanError("a is b: do c"), 5, "a is b: do c"),
        (ClusterError("a is b: do c"), 6, "a is b: do c"),
        (MemoryError("Unable to allocate 3 GiB"), 5, "3 GiB"),
        (MemoryError(), 5, "memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), 4, "'/data/x'.*No space left"),
        (OSError(errno.EMFILE, "Too many open files"), 4, "Too many open files"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), 4, "'/data/x'.*Permission denied"),
        (DataError("'a\nb.png' is c: do d"), 3, r"'a\\nb.png' is c"),
        (Stopped(1), 129, "the same command"),
        (Stopped(2), 130, "the same command"),
        (Stopped(15), 143, "the same command"),
        (KeyboardInterrupt(), 130, "the same command"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_a_code(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(raising(error)) == code
    told = capsys.readouterr().err
    assert re.search(says, told), told
    assert told.count("\n") == 1
    assert "Traceback" not in told


def every_exception(kind: type[BaseException] = Exception) -> set[type[BaseException]]:
    return {kind, *(below for sub in kind.__subclasses__() for below in every_exception(sub))}


@given(st.sampled_from(sorted((k for k in every_exception() if k.__module__ == "builtins"), key=str)))
def test_no_exception_ends_with_another_code(kind: type[Exception]) -> None:
    arguments = ("utf-8", b"x", 0, 1, "bad") if kind is UnicodeDecodeError else ("x",)
    if kind is UnicodeEncodeError:
        arguments = ("utf-8", "x", 0, 1, "bad")
    elif kind is UnicodeTranslateError:
        arguments = ("x", 0, 1, "bad")
    elif issubclass(kind, BaseExceptionGroup):
        arguments = ("x", [ValueError()])
    code = run_program(raising(kind(*arguments)))
    assert code in {3, 4, 5, 6, 70, 141}
    assert code != 1


def test_a_fault_of_the_program_is_not_damage_that_verify_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(raising(KeyError("lost"))) == 70
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert told.splitlines()[-1].startswith("error: this is a bug in dpca")


def test_commands(tmp_path: Path, scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    stack, where = make_stack(tmp_path), ["--scheduler", scheduler]
    assert main(["info", str(stack)]) == 0
    assert main(["verify", str(stack), *where]) == 0
    shard = next(p for p in sorted((stack / "samples" / "c").rglob("*")) if p.is_file())
    content = bytearray(shard.read_bytes())
    content[100] ^= 4
    shard.write_bytes(bytes(content))
    assert main(["verify", str(stack), *where]) == 1
    assert main([]) == 2
    assert main(["info", str(tmp_path / "nothing")]) == 3
    assert main(["verify", str(stack), "--scheduler", "nonsense"]) == 6
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "runs", "words"),
    [
        ("plan x", "jobs.plan", STOPPED),
        ("info x", "commands.info", STOPPED),
        ("verify x", "commands.verify_store", STOPPED),
        ("compare x y", "commands.compare", STOPPED),
        ("explore x", "explore.explore", STOPPED),
        ("synthetic x --samples 2", "commands.make_synthetic", STOPPED),
        ("job run --dry-run x", "job.run_job_file", STOPPED),
        ("job run x", "job.run_job_file", INTERRUPTED),
        ("watch x y", "watch.watch", INTERRUPTED),
        ("transform x y z", "model_commands.transform", INTERRUPTED),
    ],
)
def test_only_what_resumes_says_so(
    command: str, runs: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"dpca.cli.{runs}", lambda options: os.kill(os.getpid(), signal.SIGINT))
    assert main(command.split()) == 130
    assert capsys.readouterr().err == f"{words}\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program ends by the same rules: `run_program` reports what its body raises."""
    monkeypatch.chdir(tmp_path)
    for error, code in ((DataError("x"), 3), (ClusterError("x"), 6), (KeyError("x"), 70), (Stopped(15), 143)):
        monkeypatch.setattr(program, "_run", lambda options, error=error: raising(error)())
        assert program.main([]) == code  # type: ignore[attr-defined]
    with pytest.raises(SystemExit) as end:
        program.main(["--no-such-option"])  # type: ignore[attr-defined]
    assert end.value.code == 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_stack(tmp_path_factory.mktemp("store"))


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("info {stack} > /dev/full", 4, "error: standard output cannot be written (No space left on device)"),
        ("--help > /dev/full", 4, "error: standard output cannot be written (No space left on device)"),
        ("info {stack} | true", 141, ""),
        ("--help | true", 141, ""),
        ("info {stack} >&-", 0, ""),
        ("info nothing 2>&-", 3, ""),
        ("info nothing 2> /dev/full", 3, ""),
    ],
)
def test_output_that_cannot_be_written(command: str, code: int, says: str, stack: Path) -> None:
    line = f"{shlex.join(DPCA)} {command.format(stack=shlex.quote(str(stack)))}; exit ${{PIPESTATUS[0]}}"
    # Without buffers argparse would see the error of its own help, and hide it.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT, env=buffered)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.startswith(says)
    assert ended.stderr.count("\n") == bool(says)


def test_a_name_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    program = "from dpca.cli.running import say; say('caf\\u00e9 \\udcff')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert ended.stdout == b"caf\\xe9 \\udcff\n"


def test_say_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say("Größe")
    assert capsys.readouterr().out == "Größe\n"
