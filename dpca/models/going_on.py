"""Whether a model can take in further samples: only one that has taken in all of its samples by partial_fit can."""

from __future__ import annotations

from typing import Any

from storage.errors import DataError


def refuse_to_go_on(model: Any) -> None:
    """Refuse a model that knows components but not the sums that they were made from.

    Raises
    ------
    DataError
    """
    if hasattr(model, "components_"):
        raise DataError(
            f"this {type(model).__name__} was fitted by fit() or read by load() and keeps no state to go on from: give "
            f"all samples to fit(), or begin with a new estimator, sklearn.base.clone(model)"
        )
