"""The sections of the study's page: ridge regression, networks, cascades and whitened convolutions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dpca.cli.running import say
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.rednet import training, whitening
from dpca.pipelines.studies.rednet.cascade import cascade_table
from dpca.pipelines.studies.rednet.inputs import Inputs
from dpca.pipelines.studies.rednet.published import TABLE_5_1, TABLE_5_2, TABLE_5_3
from dpca.pipelines.studies.rednet.ridge import PENALTY, ROWS, SHARES, accuracies
from dpca.pipelines.studies.rednet.splits import TASKS
from dpca.pipelines.studies.rednet.tables import comparison, numbers
from dpca.pipelines.studies.rednet.trials import chosen_device, results, run
from dpca.pipelines.studies.runner import Section
from dpca.report.page import DataTable

_THEIRS = {"LFW-14": (TABLE_5_1 | TABLE_5_2, "tables 5.1 and 5.2"), "LFW-24": (TABLE_5_3, "table 5.3")}
_ALIGNED = "Photographs are the deep-funneled ones, which are aligned and easier; the thesis used the original ones."


class RedNetStudy:
    """The shared input of the sections.

    Parameters
    ----------
    setting : Setting
    options : argparse.Namespace
        Options of ``pipelines/reproduce_rednet.py``.
    """

    def __init__(self, setting: Setting, options: argparse.Namespace) -> None:
        self.setting, self.options = setting, options

    @cached_property
    def deadline(self) -> float:
        """Time after which no trial begins, on the clock of ``time.monotonic``; it counts from the first network."""
        return time.monotonic() + 60 * float(self.options.minutes)

    @cached_property
    def device(self) -> str | None:
        """Name of the device to train on in torch."""
        found = chosen_device(self.options.device)
        if found is None:
            say("no GPU was found (torch.cuda), and nothing is trained")
        return found

    @cached_property
    def inputs(self) -> Inputs:
        """The photographs of the tasks, kept for another machine."""
        if self.options.inputs is not None:
            return Inputs.load(Path(self.options.inputs))
        made = Inputs.made(self.setting)
        made.save(self.setting.workspace / "inputs.npz")
        return made

    def trained(
        self, name: str, names: Iterable[str], courses: Callable[[str], Mapping[str, Any]], trials: int
    ) -> tuple[dict[str, Array], str]:
        """Train networks if there is a device; return the accuracies on disk, and a note if there are none.

        ``courses`` receives the device, and returns the first argument of `run`.
        """
        folder = self.setting.workspace / "trials" / name.lower()
        if self.device is not None:
            run(courses(self.device), trials, folder, self.deadline, say)
        ours = results(folder, names)
        return ours, "" if ours else "No GPU was found and no trials are on disk: no network was trained. "


def ridge_section(study: RedNetStudy) -> Section:
    """Ridge regression on every input, a linear model in seconds."""
    chosen = (
        f"Of standardized values. The penalty of a trial is one of {SHARES} times the number of values: the one with "
        f"the best accuracy on training photographs, each left out in turn. {_ALIGNED}"
    )
    fixed = f"Of standardized values, at one penalty for all inputs, chosen after seeing the results. {_ALIGNED}"
    tables, found = list[DataTable](), dict[str, Any]()
    for task in TASKS:
        for name, penalty, note in (("ridge", None, chosen), (f"ridge of penalty {PENALTY:g}", PENALTY, fixed)):
            ours = {
                row: accuracies(values(study.inputs), study.inputs.person, task, study.setting.trials, penalty)
                for row, values in ROWS.items()
                if row.split()[0] in study.inputs.arrays
            }
            found |= numbers(f"{name}, {task.name}", ours)
            heading = f"{name.replace('ridge', 'Ridge regression')}, {task.name}"
            tables.append(comparison(heading, ours, {}, "color", (note,)))
    return Section(tables, numbers=found)


def network_section(study: RedNetStudy) -> Section:
    """Tables 5.1 and 5.3: RedNet, if torch finds an accelerator."""
    tables, found = list[DataTable](), dict[str, Any]()
    for task in TASKS:
        theirs, where = _THEIRS[task.name]
        courses = partial(training.courses, study.inputs, task)
        ours, note = study.trained(task.name, training.NETWORKS, courses, study.options.network_trials)
        found |= numbers(task.name, ours)
        heading = f"Networks, {task.name} ({where})"
        tables.append(comparison(heading, ours, theirs, "RedNet, color", (f"{note}{_ALIGNED}",)))
    return Section(tables, numbers=found)


def whitening_section(study: RedNetStudy) -> Section:
    """Patch components as a first convolution that is not trained, if torch finds an accelerator."""
    images, labels = study.setting.cifar()
    courses = partial(whitening.courses, images, labels)
    ours, note = study.trained("whitening", whitening.FIRST, courses, whitening.SEEDS)
    note += (
        f"CIFAR-10, {whitening.LEARNED:,} training images and {len(images) - whitening.LEARNED:,} test images, "
        f"split by the seed of each trial; {whitening.EPOCHS} epochs of a small network after this first convolution."
    )
    table = comparison("A first convolution of patch components", ours, {}, "trained", (note,))
    return Section([table], numbers=numbers("whitening", ours))


def cascade_section(study: RedNetStudy) -> Section:
    """Layers of patch components and ridge regression, with ablations."""
    table, found = cascade_table(study.setting)
    return Section([table], numbers=found)


SECTIONS: dict[str, Callable[[RedNetStudy], Section]] = {
    "ridge": ridge_section,
    "network": network_section,
    "cascade": cascade_section,
    "whitening": whitening_section,
}
"""Name of each section of the page -> function that computes it."""
