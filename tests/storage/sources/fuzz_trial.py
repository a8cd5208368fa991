"""Reads damaged sources, each in a separate process.

The child process runs under a limit of memory and says what it does before it does it, so that a crash, a hang and an
exhausted memory are each laid at the door of the one source that caused them.
"""

from __future__ import annotations

import io
import json
import os
import resource
import select
import shutil
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions
from tests.storage.sources.fuzzed_sources import form_of, make_fuzzed

MEMORY = 1 << 30
SECONDS = 30.0


class Fault(NamedTuple):
    """A fault in the handling of one source."""

    number: int
    kind: str
    what: str


def trial(source: Path, folder: Path) -> str:
    """Use a source in every way; return the faults, which should be none."""
    from dpca.cli import main
    from dpca.storage import DataError, StoreError, ingest, open_stack
    from dpca.storage.readers import open_reader

    names = [path.name for path in source.parent.iterdir()]
    try:
        names += [f"'{name}'" for name in open_reader(source).names[:1000]]
    except (DataError, StoreError) as error:
        if fault := _sentence(str(error), names):
            return f"open_reader: {fault}"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["info", str(source)])
    if code not in (0, 3, 4):
        return f"dpca info ended with {code}: {err.getvalue()}"
    if code and (fault := _sentence(err.getvalue().removeprefix("error: ").removesuffix("\n"), names)):
        return f"dpca info: {fault}"
    for on_error in ("stop", "skip"):
        target = folder / f"out-{on_error}.zarr"
        try:
            ingest(source, target, reading=ReadOptions(on_error=on_error), run=Run(threads=1))  # type: ignore[arg-type]
        except (DataError, StoreError) as error:
            if fault := _sentence(str(error), names):
                return f"ingest: {fault}"
            if target.exists():
                return f"ingest: {target.name} is there after {error}"
        else:
            stack = open_stack(target)
            assert len(stack.names) == len(stack.samples[:]), "names for other samples"
            assert stack.labels is None or len(stack.labels) == stack.n_samples
    return ""


def _sentence(message: str, names: list[str]) -> str:
    if "\n" in message or not message:
        return f"not one line: {message!r}"
    if len(message) > 1003:
        return f"{len(message)} characters: {message!r}"
    if not any(name in message for name in names):
        return f"names no file: {message!r}"
    return ""


def limit() -> None:
    """Limit the memory of this process, and turn warnings into errors."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("error")
    import dpca.cli.commands

    assert dpca.cli.commands


def _child(seed: int, start: int, stop: int, folder: Path, only: str) -> None:
    limit()
    for number in range(start, stop):
        work = folder / str(number)
        work.mkdir()
        (work / "in").mkdir()
        form, source = make_fuzzed(number, seed, work / "in", only)
        print(f"begin {number}", flush=True)
        try:
            fault = trial(source, work)
        except BaseException:
            fault = traceback.format_exc()
        print(f"end {number} {json.dumps([form, fault])}", flush=True)
        if not fault:
            shutil.rmtree(work)


def run_fuzzed(seed: int, start: int, stop: int, folder: Path, only: str = "") -> Iterator[Fault]:
    """Try the sources from `start` up to `stop`; yield what went wrong. Those at fault are left in the folder."""
    while start < stop:
        command = [sys.executable, __file__, str(seed), str(start), str(stop), str(folder), only]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            current, since, waiting = start, time.monotonic(), b""
            os.set_blocking(child.stdout.fileno(), False)
            while True:
                # the first one has the imports before it
                if not select.select([child.stdout], [], [], 2 * SECONDS)[0]:
                    child.kill()
                    yield Fault(current, form_of(current, only), f"no end after {time.monotonic() - since:.0f} s")
                    break
                read = child.stdout.read()
                if not read:
                    break
                *lines, waiting = (waiting + read).split(b"\n")
                for line in lines:
                    word, number, *rest = line.decode().split(" ", 2)
                    if word == "begin":
                        current, since = int(number), time.monotonic()
                    elif word == "end":
                        took = time.monotonic() - since
                        form, fault = json.loads(rest[0])
                        if fault:
                            yield Fault(int(number), form, fault)
                        elif took > SECONDS:
                            yield Fault(int(number), form, f"took {took:.0f} s")
                        current = int(number) + 1
            code = child.wait()
            if current < stop:
                if code != -9:
                    yield Fault(
                        current,
                        form_of(current, only),
                        f"process ended with {code}: {child.stderr.read().decode()[-500:]}",
                    )
                current += 1
        start = current


def run_given(sources: list[Path], folder: Path) -> list[str]:
    """Try sources as they are, in one process under the limit of memory; return how each ended."""
    given, told = folder / "given.json", folder / "told.json"
    given.write_text(json.dumps([os.fspath(source) for source in sources]))
    subprocess.run([sys.executable, __file__, os.fspath(given), os.fspath(told)], check=True, timeout=4 * SECONDS)
    ends: list[str] = json.loads(told.read_text())
    return ends


def _given(given: Path, told: Path) -> None:
    from dpca.storage import DataError, StoreError, ingest

    limit()
    ends = []
    for i, source in enumerate(map(Path, json.loads(given.read_text()))):
        target = given.with_name(f"out-{i}.zarr")
        fault = trial(source, source.parent)
        try:
            ingest(source, target, run=Run(threads=1))
            end = "ingested"
        except (DataError, StoreError) as error:
            end = f"refused: {error}"
        ends.append(fault or ("half-written" if target.exists() and end != "ingested" else end))
    told.write_text(json.dumps(ends))


if __name__ == "__main__" and len(sys.argv) == 3:
    _given(*map(Path, sys.argv[1:]))
elif __name__ == "__main__":
    _child(*map(int, sys.argv[1:4]), folder=Path(sys.argv[4]), only=sys.argv[5])
