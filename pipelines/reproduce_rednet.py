"""Classifiers on scores of cells: chapter 5 of the thesis (Alakkari 2020) computed again, theirs beside ours.

Writes a page with tables, and the numbers as JSON. Photographs become a stack, the stack cells, and their scores inputs
of 25 x 25 values, which a network and a linear model learn from, on the same random splits.

  ridge      ridge regression on every input, a linear model in seconds
  network    tables 5.1 and 5.3: RedNet, where torch finds an accelerator
  cascade    layers of patch components and ridge regression, with ablations
  whitening  patch components as a first convolution that is not trained, where torch finds an accelerator

What the network needs is kept in inputs.npz in the output folder: --inputs takes it to a machine with an accelerator,
which needs no photographs. Each trial is kept as soon as it ends, and a later run resumes from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):  # this program, or a worker process of it
    from dpca.cli.starting import start

    start(__name__)

from dpca.cli.arguments import positive
from dpca.cli.running import guarded, say
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.rednet import training, whitening
from dpca.pipelines.studies.rednet.cascade import cascade_table
from dpca.pipelines.studies.rednet.inputs import Inputs
from dpca.pipelines.studies.rednet.published import TABLE_5_1, TABLE_5_2, TABLE_5_3
from dpca.pipelines.studies.rednet.ridge import PENALTY, ROWS, SHARES, accuracies
from dpca.pipelines.studies.rednet.splits import TASKS
from dpca.pipelines.studies.rednet.tables import comparison, numbers
from dpca.pipelines.studies.rednet.trials import chosen_device, results, run
from dpca.pipelines.studies.reproduction.data import Setting
from dpca.pipelines.studies.runner import Section, SectionPage
from dpca.report.page import DataTable

_THEIRS = {"LFW-14": (TABLE_5_1 | TABLE_5_2, "tables 5.1 and 5.2"), "LFW-24": (TABLE_5_3, "table 5.3")}
_ALIGNED = "Photographs are the deep-funneled ones, which are aligned and easier; the source took the original ones."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code (see `dpca.cli.running`)."""
    return guarded(lambda: _run(_parser().parse_args(argv)))


def _run(options: argparse.Namespace) -> int:
    study = _Study(options)
    sections = {name: partial(_section, study, make) for name, make in SECTIONS.items()}
    return SectionPage(study.output, "Classifiers on scores of cells", [options.data]).make(sections, options.only)


def _section(study: _Study, make: Callable[[_Study], list[DataTable]]) -> Section:
    return Section(make(study), numbers=study.numbers)


class _Study:
    """What the sections share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, Path(options.output)
        self.setting = Setting(Path(options.data), self.output, options.trials)
        self.numbers: dict[str, Any] = {}
        self._inputs: Inputs | None = None

    @cached_property
    def deadline(self) -> float:
        """When to begin no more trials, on the clock of ``time.monotonic``: so long after the first network."""
        return time.monotonic() + 60 * float(self.options.minutes)

    @cached_property
    def device(self) -> str | None:
        """What torch calls the device to train on."""
        found = chosen_device(self.options.device)
        if found is None:
            say("no GPU was found (torch.cuda), and nothing is trained")
        return found

    @property
    def inputs(self) -> Inputs:
        """The photographs of the tasks; made once, and kept for another machine."""
        if self._inputs is None:
            if self.options.inputs is not None:
                self._inputs = Inputs.load(Path(self.options.inputs))
            else:
                self._inputs = Inputs.made(self.setting)
                self._inputs.save(self.output / "inputs.npz")
        return self._inputs


def _ridge(study: _Study) -> list[DataTable]:
    chosen = (
        f"Of standardized values. Of penalties of {SHARES} times their number, each trial takes the one that is right "
        f"most often on training photographs left out one by one. {_ALIGNED}"
    )
    fixed = f"Of standardized values, at one penalty for all inputs, picked after seeing the results. {_ALIGNED}"
    tables = []
    for task in TASKS:
        for name, penalty, note in (("ridge", None, chosen), (f"ridge of penalty {PENALTY:g}", PENALTY, fixed)):
            ours = {
                row: accuracies(values(study.inputs), study.inputs.person, task, study.options.trials, penalty)
                for row, values in ROWS.items()
                if row.split()[0] in study.inputs.arrays
            }
            study.numbers |= numbers(f"{name}, {task.name}", ours)
            heading = f"{name.replace('ridge', 'Ridge regression')}, {task.name}"
            tables.append(comparison(heading, ours, {}, "color", (note,)))
    return tables


def _network(study: _Study) -> list[DataTable]:
    tables = []
    for task in TASKS:
        theirs, where = _THEIRS[task.name]
        courses = partial(training.courses, study.inputs, task)
        ours, told = _trained(study, task.name, training.NETWORKS, courses, study.options.network_trials)
        heading = f"Networks, {task.name} ({where})"
        tables.append(comparison(heading, ours, theirs, "RedNet, color", (f"{told}{_ALIGNED}",)))
    return tables


def _trained(
    study: _Study, name: str, names: Iterable[str], courses: Callable[[str], Mapping[str, Any]], trials: int
) -> tuple[dict[str, Array], str]:
    """Train the networks of these names, where there is a device, and return the accuracies on disk, and what to say.

    ``courses`` receives the device, and returns what `run` takes.
    """
    folder = study.output / "trials" / name.lower()
    if study.device is not None:
        run(courses(study.device), trials, folder, study.deadline, say)
    ours = results(folder, names)
    study.numbers |= numbers(name, ours)
    return ours, "" if ours else "No GPU was found and no trials are on disk: no network was trained. "


def _cascade(study: _Study) -> list[DataTable]:
    table, found = cascade_table(study.setting)
    study.numbers |= found
    return [table]


def _whitening(study: _Study) -> list[DataTable]:
    images, labels = study.setting.cifar_images(), study.setting.cifar_labels()
    courses = partial(whitening.courses, images, labels)
    ours, told = _trained(study, "whitening", whitening.FIRST, courses, whitening.SEEDS)
    note = (
        f"{told}CIFAR-10, {whitening.LEARNED:,} training images and {len(images) - whitening.LEARNED:,} test images, "
        f"split by each trial's seed; {whitening.EPOCHS} epochs of a small network whose first convolution is this."
    )
    return [comparison("A first convolution of patch components", ours, {}, "trained", (note,))]


SECTIONS: dict[str, Callable[[_Study], list[DataTable]]] = {
    "ridge": _ridge,
    "network": _network,
    "cascade": _cascade,
    "whitening": _whitening,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reproduce_rednet.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", default="../shared/data", metavar="FOLDER", help="folder of the data (default: %(default)s)"
    )
    parser.add_argument(
        "--output", default="rednet.report", metavar="FOLDER", help="page to write (default: %(default)s)"
    )
    parser.add_argument("--inputs", metavar="FILE", help="inputs.npz of an earlier run, instead of photographs")
    parser.add_argument("--trials", type=positive, default=100, metavar="N", help="splits for ridge (default: 100)")
    parser.add_argument(
        "--network-trials", type=positive, default=20, metavar="N", help="splits for networks (default: 20)"
    )
    parser.add_argument("--minutes", type=positive, default=25, metavar="N", help="most time to train (default: 25)")
    parser.add_argument("--device", help="what torch calls the device to train on (default: the accelerator, if any)")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, metavar="SECTION", help="make only these sections (default: all)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
