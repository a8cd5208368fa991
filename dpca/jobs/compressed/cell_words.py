"""The choice of cells in words, for the reader of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpca.codec.goal import Goal


def reasons(
    chosen: dict[str, Any], cost: float, tried: Sequence[tuple[dict[str, Any], float]], goal: Goal, shape: Sequence[int]
) -> list[str]:
    """Return why cells were chosen: by their size, and what whole samples would have taken."""
    found = []
    if len(tried) > 1:
        found.append(f"the smallest store of {len(tried)} kinds that were tried has {cells_in_words(chosen)}")
    for parameters, spent in tried:
        if parameters is not chosen and parameters["cell_shape"] == list(shape[: len(parameters["cell_shape"])]):
            takes = f"would make it about {spent / cost:,.{0 if spent > 10 * cost else 1}f} times larger"
            found.append(f"components of whole samples {f'cannot reach {goal.words}' if math.isinf(spent) else takes}")
    return found


def cells_in_words(parameters: Mapping[str, Any]) -> str:
    """Describe the cells of a `CellPCA` with these parameters."""
    shape = " x ".join(map(str, parameters["cell_shape"]))
    overlap = f", overlap {parameters['overlap']}" if parameters["overlap"] else ""
    return f"cells of {shape}{overlap}, {'shared' if parameters['shared'] else 'own'} components"
