"""Ridge regression on the inputs, values standardized: what a linear model makes of the same splits in seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.linear_model import RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpca.kernels.types import Array
from dpca.pipelines.studies.rednet.inputs import Inputs
from dpca.pipelines.studies.rednet.splits import Split, Task, split

#: Penalties, as shares of the number of attributes: the error of leaving out one training photograph chooses.
SHARES = (0.01, 0.1, 1.0, 10.0)

ROWS: dict[str, Callable[[Inputs], Array]] = {
    "grey": lambda inputs: inputs.arrays["grey"],
    "color": lambda inputs: inputs.arrays["color"],
    "own k = 3": lambda inputs: inputs.arrays["own"][..., :3],
    "own k = 10": lambda inputs: inputs.arrays["own"],
    "shared k = 3": lambda inputs: inputs.arrays["shared"],
    "random k = 3": lambda inputs: inputs.arrays["random"][..., :3],
    "random k = 10": lambda inputs: inputs.arrays["random"],
}


def accuracies(values: Array, person: Array, task: Task, trials: int) -> Array:
    """Return the accuracy of each trial, in %."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.array([100 * _accuracy(rows, split(person, task, trial)) for trial in range(trials)])


def _accuracy(rows: Array, drawn: Split) -> float:
    penalties = [share * rows.shape[1] for share in SHARES]
    model = make_pipeline(StandardScaler(), RidgeClassifierCV(penalties))
    known, wanted = drawn.labels
    return float(model.fit(rows[drawn.learned], known).score(rows[drawn.tested], wanted))
