"""Sides that take turns, the ratio that they make, and its line of JSON: what every benchmark here does."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from threadpoolctl import threadpool_info, threadpool_limits

from tests.benchmarks.inputs import Inputs

Seconds = dict[str, float]
Stage = Callable[[Inputs], Iterator["Line"]]

#: Relative change for the worse that chance may make of a ratio, by unit, on a machine with neighbors.
MARGINS = {"CPU s": 0.15, "wall s": 0.25, "bytes": 0.05, "variance": 0.02, "share": 0.0005}


def machine() -> str:
    """Return what speeds depend on: the number of processors, and what BLAS computes for."""
    kinds = {info["architecture"] for info in threadpool_info() if "architecture" in info}  # MKL does not say
    return f"{os.cpu_count()} processors, BLAS for {', '.join(sorted(kinds))}"


@dataclass(frozen=True)
class Line:
    """One ratio.

    Attributes
    ----------
    name : str
        The same in every run, by which runs are compared.
    ratio : float or None
        None where a side cannot be measured here, for the reason in ``what``.
    what : str
        What is divided by what.
    asked : float or None
        What the ratio should be at most, or at least, where something is asked.
    better : {"lower", "higher"}
    sides : dict
        Median of each quantity that was measured, also of those that are no part of the ratio.
    unit : str
        Of the sides; one of `MARGINS`.
    where : str
        Input.
    n : int
        Samples of it.
    """

    name: str
    ratio: float | None
    what: str
    asked: float | None
    better: Literal["lower", "higher"]
    sides: dict[str, float]
    unit: str
    where: str
    n: int
    machine: str = field(default_factory=machine)


def at_most(limit: float | None, **line: Any) -> Line:
    """Return a line whose ratio should be low."""
    return Line(asked=limit, better="lower", **line)


def at_least(limit: float | None, **line: Any) -> Line:
    """Return a line whose ratio should be high."""
    return Line(asked=limit, better="higher", **line)


def ratio_of(
    rounds: Sequence[Seconds], above: Sequence[str], below: Sequence[str], unit: str = "CPU s"
) -> dict[str, Any]:
    """Return ratio, meaning, sides and unit of a line: the median over rounds of sum(above) / sum(below)."""
    ratios = [sum(each[name] for name in above) / sum(each[name] for name in below) for each in rounds]
    over, under = (" + ".join(names) for names in (above, below))
    return {
        "ratio": float(f"{median(ratios):.6g}"),
        "what": f"{over if len(above) == 1 else f'({over})'} / {under if len(below) == 1 else f'({under})'}",
        "sides": {name: float(f"{median(each[name] for each in rounds):.6g}") for name in rounds[0]},
        "unit": unit,
    }


def in_turn(
    sides: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.process_time
) -> list[Seconds]:
    """Return what each side takes in each round.

    They take turns, since the speed of a machine with neighbors drifts.
    """
    found = []
    for _ in range(rounds):
        found.append({})
        for name, side in sides.items():
            began = clock()
            side()
            found[-1][name] = clock() - began
    return found


@dataclass
class Clock:
    """Adds up the processor seconds of what it runs, of all threads, by name."""

    seconds: Seconds = field(default_factory=dict)

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """Run and return what that returns."""
        began = time.process_time()
        result = work()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - began
        return result


@contextmanager
def one_processor() -> Iterator[None]:
    """Keep every thread of this process on one processor, where the system can, and have one of BLAS.

    Threads on two processors that share a core slow each other: a side that has several would pay for it alone. Those
    of BLAS, on one processor, would wait for each other at its expense.
    """
    if not hasattr(os, "sched_setaffinity"):  # not on macOS
        yield
        return
    before = os.sched_getaffinity(0)
    _allow({min(before)})
    try:
        with threadpool_limits(1):
            yield
    finally:
        _allow(before)


def _allow(processors: set[int]) -> None:
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(thread, processors)


def print_line(line: Line) -> None:
    """Print a line as JSON."""
    print(json.dumps(asdict(line)), flush=True)


def read_lines(path: Path) -> dict[str, Line]:
    """Return the lines that an earlier run printed, by name."""
    lines = [Line(**json.loads(text)) for text in path.read_text().splitlines() if text.startswith("{")]
    return {line.name: line for line in lines}


def compared(old: Line, new: Line) -> tuple[str, bool]:
    """Return a sentence on two ratios of one name, and whether the new one is worse by more than the margin."""
    if old.ratio is None or new.ratio is None:
        return f"{new.name}: {old.ratio} -> {new.ratio}, not compared", False
    change = (new.ratio - old.ratio) / (abs(old.ratio) or 1)
    worse = (change if new.better == "lower" else -change) > MARGINS[new.unit]
    verdict = f", worse by more than {MARGINS[new.unit]:.0%}" if worse else ""
    return f"{new.name}: {old.ratio:.4g} -> {new.ratio:.4g} ({change:+.1%}){verdict}", worse


def options_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--source", nargs="+", help="archives or a folder of photographs (default: LFW, ../shared/data)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times that the sides take turns; medians count")
    parser.add_argument("--quick", action="store_true", help="small made inputs: shows that it runs, measures nothing")
    return parser


def inputs_of(options: argparse.Namespace, folder: str) -> Inputs:
    """Return the inputs that options ask for; what has to be made is made in ``folder``."""
    return Inputs(Path(folder).resolve(), options.source, options.rounds, options.quick)


def alone(stage: Stage, doc: str | None, *, on_cluster: bool = False) -> int:
    """Run one stage as a program, on one processor unless it starts workers."""
    options = options_of(doc).parse_args()
    where = nullcontext() if on_cluster else one_processor()
    with where, tempfile.TemporaryDirectory(dir=".") as folder:
        for line in stage(inputs_of(options, folder)):
            print_line(line)
    return 0
