"""States and results of folds in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.rules.base.state import State
from dpca.storage.transaction.checkpoints import Checkpoints

_LENGTH = "n_partitions"
# Bytes of arrays of equal parts that are written together. Larger ones are not copied.
_STACKED_BYTES = 2**22


def save_states(checkpoints: Checkpoints, name: str, states: Sequence[State]) -> None:
    """Write the states of a group of parts."""
    counts = {f"{i}.{key}": value for i, state in enumerate(states) for key, value in state.counts.items()}
    arrays = stacked([state.to_numpy().arrays for state in states])
    checkpoints.save(name, arrays, {**counts, _LENGTH: len(states)})


def load_states(checkpoints: Checkpoints, name: str) -> list[State] | None:
    """Read the states that `save_states` wrote; None as in `Checkpoints.load`."""
    kept = checkpoints.load(name)
    if kept is None:
        return None
    arrays, numbers = kept
    counts: list[dict[str, int]] = [{} for _ in range(numbers.pop(_LENGTH))]
    for numbered, value in numbers.items():
        index, _, key = numbered.partition(".")
        counts[int(index)][key] = value
    return [State(*both) for both in zip(unstacked(arrays, len(counts)), counts, strict=True)]


def save_results(checkpoints: Checkpoints, name: str, results: Sequence[dict[str, Array]]) -> None:
    """Write the results of a group of parts."""
    checkpoints.save(name, stacked(results), {_LENGTH: len(results)})


def load_results(checkpoints: Checkpoints, name: str) -> list[dict[str, Array]] | None:
    """Read the results that `save_results` wrote; None as in `Checkpoints.load`."""
    kept = checkpoints.load(name)
    return None if kept is None else unstacked(kept[0], kept[1][_LENGTH])


def stacked(bundles: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return one dictionary of arrays, with the number of the first bundle of each stack of equal ones in the keys.

    An archive or a message with arrays of 100,000 small parts would take a minute.
    """
    flat: dict[str, Array] = {}
    held: list[Mapping[str, Array]] = []
    for i, bundle in enumerate([*bundles, {}]):
        if held and (_form(bundle) != _form(held[0]) or _form(bundle)[1] * len(held) > _STACKED_BYTES):
            several = len(held) > 1
            for key, array in held[0].items():
                flat[f"{i - len(held)}.{key}"] = (
                    np.stack([b[key] for b in held]) if several else np.asarray(array)[None]
                )
            held = []
        held.append(bundle)
    return flat


def _form(bundle: Mapping[str, Array]) -> tuple[list[Any], int]:
    """Return names, dtypes and shapes of the arrays of a bundle, and their bytes."""
    arrays = [(key, array.dtype, array.shape) for key, array in bundle.items()]
    return arrays, sum(array.nbytes for array in bundle.values())


def unstacked(flat: Mapping[str, Array], n: int) -> list[dict[str, Array]]:
    """Return n bundles: the inverse of `stacked`."""
    bundles: list[dict[str, Array]] = [{} for _ in range(n)]
    for name, stack in flat.items():
        first, _, key = name.partition(".")
        for i, array in enumerate(stack, int(first)):
            bundles[i][key] = np.asarray(array)
    return bundles
