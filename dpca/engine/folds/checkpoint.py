"""States and results of folds in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.storage.transaction.checkpoints import Checkpoints

T = TypeVar("T")
_LENGTH = "n_partitions"


def save_states(checkpoints: Checkpoints, name: str, states: Sequence[State]) -> None:
    """Write the states of a group of parts."""
    arrays = _flat([state.to_numpy().arrays for state in states])
    checkpoints.save(name, arrays, {**_flat([state.counts for state in states]), _LENGTH: len(states)})


def load_states(checkpoints: Checkpoints, name: str) -> list[State] | None:
    """Read the states that `save_states` wrote; None as in `Checkpoints.load`."""
    kept = checkpoints.load(name)
    if kept is None:
        return None
    arrays, counts = kept
    n = counts.pop(_LENGTH)
    return [State(*both) for both in zip(_nested(arrays, n), _nested(counts, n), strict=True)]


def save_results(checkpoints: Checkpoints, name: str, results: Sequence[dict[str, Array]]) -> None:
    """Write the results of a group of parts."""
    checkpoints.save(name, _flat(results), {_LENGTH: len(results)})


def load_results(checkpoints: Checkpoints, name: str) -> list[dict[str, Array]] | None:
    """Read the results that `save_results` wrote; None as in `Checkpoints.load`."""
    kept = checkpoints.load(name)
    return None if kept is None else _nested(kept[0], kept[1][_LENGTH])


def _flat(bundles: Sequence[Mapping[str, T]]) -> dict[str, T]:
    """Flatten a sequence of bundles to one dictionary, with numbered keys."""
    return {f"{i}.{key}": value for i, bundle in enumerate(bundles) for key, value in bundle.items()}


def _nested(flat: Mapping[str, T], n: int) -> list[dict[str, T]]:
    """Return n bundles: the inverse of `_flat`."""
    bundles: list[dict[str, T]] = [{} for _ in range(n)]
    for name, value in flat.items():
        index, _, key = name.partition(".")
        bundles[int(index)][key] = value
    return bundles
