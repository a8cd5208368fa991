"""Chooses few cases of a product of parameters in which all values, or all pairs of values, still occur."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations


def covering(cases: Sequence[Mapping[str, Hashable]], strength: int) -> list[int]:
    """Return indices of cases in which all values, or all ``strength`` values together, of all cases occur.

    Greedy: the next case is the one with the most combinations that have not occurred yet. Of several it is the one
    with the values that have occurred least, and then the first. Thus values of one parameter meet many of another.
    """
    if any(len(set(values)) == len(cases) for values in zip(*(case.values() for case in cases), strict=True)):
        return list(range(len(cases)))  # a value that is in one case only needs that case
    parts = [set(combinations(sorted(case.items()), min(strength, len(case)))) for case in cases]
    missing, used = set().union(*parts), Counter[object]()
    chosen, left = [], list(range(len(cases)))
    while missing:
        best = max(left, key=lambda i: (len(parts[i] & missing), -sum(used[value] for value in cases[i].items()), -i))
        chosen.append(best)
        left.remove(best)
        missing -= parts[best]
        used.update(cases[best].items())
    return sorted(chosen)
