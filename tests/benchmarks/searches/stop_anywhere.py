"""Stop programs by signals at random moments from their first to their last; see how they end and what they leave.

    python tests/benchmarks/searches/stop_anywhere.py --count 100 --seed 0

Takes ``dpca verify``, ``ingest``, ``fit`` and the main job, and SIGINT (to the whole session, as a terminal does),
SIGTERM, SIGHUP and SIGKILL in turn. A stopped program has to end with the signal's exit code, or 0 if it was done; to
print its one line and nothing else on standard error; to leave no process that lives five seconds later; and to finish
when it is given again. Prints a line a run; exits with 1 if one did not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from dpca.engine.folds.stopping import INTERRUPTED, STOPPED, Stopped
from dpca.storage import ingest
from dpca.storage.run import Run

ROOT = Path(__file__).parents[3]
DPCA = [sys.executable, "-c", "import sys; from dpca.cli import main; sys.exit(main())"]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    """As a shell sees it: 128 and the number of the signal that killed it."""
    errors: str
    left: list[str]
    """Processes of its session that lived five seconds later."""


def main() -> int:
    """Stop, look, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        wrong = stop_anywhere(Path(folder), options.count, options.seed)
    print(f"{wrong} of {options.count} wrong")
    return 1 if wrong else 0


def stop_anywhere(folder: Path, count: int, seed: int, longest: float = 8.0) -> int:
    """Return how many of so many runs did not end as they should."""
    rng, folder = random.Random(seed), folder.resolve()
    all_commands = prepare(folder)
    wrong = 0
    for turn in range(count):
        name, command = list(all_commands.items())[turn % len(all_commands)]
        number = SIGNALS[(turn + turn // len(all_commands)) % len(SIGNALS)]
        delay = rng.uniform(0, longest)
        faults = faults_of(stopped(command, number, delay), number)
        if turn % len(all_commands) == len(all_commands) - 1 and number == SIGNALS[-1]:
            for again in all_commands.values():
                rest = subprocess.run(again, capture_output=True, text=True, check=False)
                faults += [f"second run: {rest.returncode} {rest.stderr}"] if rest.returncode or rest.stderr else []
            all_commands = prepare(folder / str(turn))
        wrong += bool(faults)
        print(f"{name:<9} {number.name:<7} after {delay:.2f} s: {'; '.join(faults) or 'as it should'}", flush=True)
    return wrong


def prepare(folder: Path, n: int = 600) -> dict[str, list[str]]:
    """Return commands of some seconds each, and make what they read, so many samples."""
    folder.mkdir(exist_ok=True)
    values = np.random.default_rng(0).integers(0, 256, (n, 96, 96, 3), dtype=np.uint8)
    np.save(folder / "a.npy", values)
    ingest(folder / "a.npy", folder / "made.zarr", run=Run(threads=1))
    return commands(folder)


def commands(folder: Path, where: Sequence[str] = ("--workers", "2", "--memory", "1GB")) -> dict[str, list[str]]:
    """Return those commands on a cluster."""
    job = [sys.executable, str(ROOT / "pipelines" / "celeba_cpca.py"), "--source", str(folder / "a.npy")]
    fit = [*DPCA, "fit", str(folder / "made.zarr"), str(folder / "model.zarr"), "--cell", "12", "--components", "5"]
    return {
        "verify": [*DPCA, "verify", str(folder / "made.zarr"), *where],
        "ingest": [*DPCA, "ingest", str(folder / "a.npy"), str(folder / "stack.zarr"), *where],
        "fit": [*fit, *where],
        "main job": [*job, "--output", str(folder / "out.zarr"), "--cell", "12", "--components", "5", *where],
    }


def stopped(command: list[str], number: signal.Signals, delay: float, patience: float = 60) -> Ended:
    """Start a program in a session of its own, send it a signal so many seconds later, and wait for its end."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    ) as program:
        time.sleep(delay)
        if program.poll() is None:
            if number in (signal.SIGINT, signal.SIGHUP):
                os.killpg(program.pid, number)
            else:
                program.send_signal(number)
        # Not until all that hold its standard error are gone: a worker may.
        code = program.wait(timeout=patience)
        deadline = time.monotonic() + 5
        while (left := _session(program.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            process.kill()
        assert program.stderr is not None
        errors = program.stderr.read()
    return Ended(128 - code if code < 0 else code, errors, [str(process) for process in left])


def faults_of(ended: Ended, number: signal.Signals) -> list[str]:
    """Say what is wrong with an end."""
    faults = [] if ended.code in (0, 128 + number) else [f"exit code {ended.code}"]
    words = [f"{Stopped(number, words).words}\n" for words in (INTERRUPTED, STOPPED)]
    if ended.errors not in ("", *words) and number != signal.SIGKILL:
        faults.append(f"said {ended.errors!r}")
    if ended.left:
        faults.append(f"left {ended.left}")
    return faults


def _session(leader: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
    return found


if __name__ == "__main__":
    sys.exit(main())
