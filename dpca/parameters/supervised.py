"""Parameters of `StreamingRidgeClassifier`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import always_stored
from dpca.parameters.kinds import FLAG, number, sequence, whole


@dataclass(eq=False, repr=False)
class RidgeParameters:
    """Parameters of `StreamingRidgeClassifier`."""

    alphas: Any = always_stored(
        (0.1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5),
        number(above=0) | sequence(number(above=0)),
        "Penalties to choose from, above 0. A single penalty is used without cross-validation. A penalty is in units "
        "of a standardized attribute's sum of squares, which is the number of samples.",
    )
    _: KW_ONLY
    cv: int = always_stored(
        5,
        whole(2),
        "Folds of the cross-validation. It selects the penalty of the least squared error of the targets on held-out "
        "samples, as `GridSearchCV` of a pipeline with ``StandardScaler`` does in many passes. The samples of each "
        "class are assigned to the folds in turn.",
    )
    standardize: bool = always_stored(
        True, FLAG, "Whether to divide attributes by their standard deviations, except constant attributes."
    )
    memory_budget: int | None = common.memory_budget()
