"""Going on with `partial_fit`: which models can, and what the others say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpca.storage.errors import DataError


class NoStateError(DataError, AttributeError):
    """A model was fitted or loaded without its state: it has no ``partial_fit``."""


class WhereStateIsKept:
    """A method that a fitted model lacks unless it keeps the state of its fit: ``hasattr`` is False, a call says why.

    So scikit-learn treats methods that depend on parameters (``available_if``): what inspects an estimator does not
    call them.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: type[Any]) -> Any:
        if model is not None and model._states is None and model.__sklearn_is_fitted__():
            raise NoStateError(
                f"this {owner.__name__} was fitted by fit() or read by load() and keeps no state to go on from: give "
                f"all samples to fit(), or begin with a new estimator, sklearn.base.clone(model)"
            )
        return self._method.__get__(model, owner)
