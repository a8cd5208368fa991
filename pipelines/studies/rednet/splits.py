"""The people of a task of recognition, and their photographs for training and test: section 5.6.1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from dpca.kernels.algebra.types import Array


class Task(NamedTuple):
    """A task of recognition, with numbers of training and test photographs of each person."""

    name: str
    learned: int
    tested: int

    @property
    def least(self) -> int:
        """Least number of photographs of a person."""
        return self.learned + self.tested


#: LFW-14-subject and LFW-24-subject.
TASKS = (Task("LFW-14", 45, 3), Task("LFW-24", 30, 5))


def people(names: Sequence[str]) -> Array:
    """Return the person of each photograph: the name of its folder."""
    return np.array([PurePosixPath(name).parent.name for name in names])


def known_well(person: Array, least: int) -> list[str]:
    """Return the people with at least that many photographs, in alphabetical order."""
    found, counts = np.unique(person, return_counts=True)
    return [str(name) for name in found[counts >= least]]


class Split(NamedTuple):
    """The photographs of a trial."""

    learned: Array
    tested: Array
    labels: tuple[Array, Array]
    """Numbers of the people on training and test photographs."""


def split(person: Array, task: Task, trial: int) -> Split:
    """Return the photographs of a trial. They depend only on its number."""
    random = np.random.default_rng((task.learned, trial))
    learned, tested = [], []
    names = known_well(person, task.least)
    for name in names:
        drawn = random.permutation(np.flatnonzero(person == name))[: task.least]
        learned.append(drawn[: task.learned])
        tested.append(drawn[task.learned :])
    numbers = np.arange(len(names))
    labels = numbers.repeat(task.learned), numbers.repeat(task.tested)
    return Split(np.concatenate(learned), np.concatenate(tested), labels)
