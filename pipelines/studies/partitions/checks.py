"""What the thesis claims of the order of strategies, held against the numbers of a report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpca.pipelines.studies.partitions.contents import Findings
from dpca.pipelines.studies.partitions.records import Record
from dpca.pipelines.studies.partitions.strategies import HOLISTIC, RANDOM

_MEAN, _BOTH = "bands by mean, ", "bands by mean and variance, "
#: Points of explained variance within which bands at random are called like whole samples.
_ALIKE = 2.0


@dataclass(frozen=True)
class Check:
    """A claim, whether the numbers bear it out, and the numbers.

    Attributes
    ----------
    claim : str
    holds : bool or None
        None where there is nothing to compare.
    told : str
        The numbers, in words.
    """

    claim: str
    holds: bool | None
    told: str

    def sentence(self) -> str:
        """Say it."""
        if self.holds is None:
            return f"{self.claim}: cannot be told, {self.told}."
        return f"{self.claim}: {'holds' if self.holds else 'does not hold'}; {self.told}."

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"claim": self.claim, "holds": self.holds, "numbers": self.told}


def all_checks(found: Findings) -> list[Check]:
    """Return every claim about the order of strategies, on training samples and on those held out.

    Better means a lower MSE: of all training samples, and of the samples held out that were measured.
    """
    of_mean, of_both = found.named(_MEAN), found.named(_BOTH)
    last_of_each = [found.records[RANDOM], of_mean[-1]]
    claims: list[tuple[str, Sequence[Record]]] = [
        ("Larger cells are better at the same compression", found.cells()),
        ("Cells are better than whole samples", [found.records[HOLISTIC], *found.cells()[:1]]),
        ("More estimating samples are better, by mean", of_mean),
        ("More estimating samples are better, by mean and variance", of_both),
        ("Bands by mean are better than bands at random", last_of_each),
        ("Bands by mean and variance are better than by mean", [of_mean[-1], of_both[-1]]),
        ("Cells are better than bands by mean and variance", [of_both[-1], found.cells()[-1]]),
    ]
    checks = [_descending(claim, records, "training") for claim, records in claims]
    if found.samples.held_out is not None:
        checks += [_descending(f"{claim}, held out", records, "held-out") for claim, records in claims]
    for name in found.analogy.bands:
        apart = found.analogy.apart(name)
        claim = f"{name[0].upper()}{name[1:]} explain as much as whole samples, within {_ALIKE:g} points"
        k = min(len(found.analogy.bands[name]), len(found.analogy.holistic))
        checks.append(Check(claim, apart <= _ALIKE, f"at most {apart:.2f} points apart for k up to {k}"))
    return checks


def _descending(claim: str, records: Sequence[Record], which: str) -> Check:
    """Hold that each of the records, in this order, has a lower MSE than the one before."""
    if len(records) < 2:
        return Check(claim, None, "there is only one to look at")
    held_out = which == "held-out"
    errors = [float(r.arrays["held-out.mse"].mean()) if held_out else r.facts.left for r in records]
    told = ", ".join(f"{error:.3g} ({record.facts.name})" for record, error in zip(records, errors, strict=True))
    return Check(claim, all(b < a for a, b in itertools.pairwise(errors)), f"MSE {told}")
