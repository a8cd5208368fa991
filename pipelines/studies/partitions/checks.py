"""Claims of the thesis about the order of strategies, compared with the numbers of a report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from dpca.pipelines.studies.partitions.contents import Findings
from dpca.pipelines.studies.partitions.records import Record
from dpca.pipelines.studies.partitions.strategies import HOLISTIC, RANDOM

#: Points of explained variance within which bands at random count as equal to whole samples.
_ALIKE = 2.0


class Check(NamedTuple):
    """A claim, and whether it holds.

    Attributes
    ----------
    claim : str
    holds : bool or None
        None if there is nothing to compare.
    numbers : str
        The compared numbers, as text.
    """

    claim: str
    holds: bool | None
    numbers: str

    def sentence(self) -> str:
        """Return the claim and the result as a sentence."""
        result = {None: "cannot be checked", True: "holds", False: "does not hold"}[self.holds]
        return f"{self.claim}: {result}; {self.numbers}."


def all_checks(found: Findings) -> list[Check]:
    """Return every claim about the order of strategies, on training samples and on held-out samples.

    Better means a lower MSE: of all training samples, and of the measured held-out samples.
    """
    of_mean, of_both = found.named("bands by mean, "), found.named("bands by mean and variance, ")
    claims: list[tuple[str, Sequence[Record]]] = [
        ("Larger cells are better at the same compression", found.cells()),
        ("Cells are better than whole samples", [found.records[HOLISTIC], *found.cells()[:1]]),
        ("More estimating samples are better, by mean", of_mean),
        ("More estimating samples are better, by mean and variance", of_both),
        ("Bands by mean are better than bands at random", [found.records[RANDOM], of_mean[-1]]),
        ("Bands by mean and variance are better than by mean", [of_mean[-1], of_both[-1]]),
        ("Cells are better than bands by mean and variance", [of_both[-1], found.cells()[-1]]),
    ]
    checks = [
        _descending(claim + (", held out" if which == "held_out" else ""), records, which)
        for which in found.samples.measured
        for claim, records in claims
    ]
    for name in found.analogy.bands:
        apart = found.analogy.apart(name)
        claim = f"{name[0].upper()}{name[1:]} explain as much as whole samples, within {_ALIKE:g} points"
        k = min(len(found.analogy.bands[name]), len(found.analogy.holistic))
        checks.append(Check(claim, apart <= _ALIKE, f"at most {apart:.2f} points apart for k up to {k}"))
    return checks


def _descending(claim: str, records: Sequence[Record], which: str) -> Check:
    """Check that each record has a lower MSE than the one before."""
    if len(records) < 2:
        return Check(claim, None, "there is only one strategy")
    held_out = which == "held_out"
    errors = [float(r.arrays["held_out.mse"].mean()) if held_out else r.facts.left for r in records]
    numbers = ", ".join(f"{error:.3g} ({record.facts.name})" for record, error in zip(records, errors, strict=True))
    return Check(claim, all(b < a for a, b in itertools.pairwise(errors)), f"MSE {numbers}")
