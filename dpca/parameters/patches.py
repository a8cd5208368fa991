"""Parameters of `PatchPCA` and `PatchCascade`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import always_stored, never_stored
from dpca.parameters.kinds import FLAG, LENGTHS, choice, number, sequence, whole


@dataclass(eq=False, repr=False)
class PatchParameters:
    """Parameters of `PatchPCA`."""

    n_components: int | None = never_stored(
        None, whole(1), "Components to keep; None keeps one for each attribute of a patch.", shown="int or None"
    )
    patch_shape: int | tuple[int, ...] = never_stored(
        5,
        LENGTHS,
        "Length of a patch along each spatial axis, or one integer for all axes. The length of a tuple is the number "
        "of spatial axes; the axes after them are channels. With an integer, a last axis of length 4 or less after two "
        "or more other axes counts as channels.",
    )
    stride: int | tuple[int, ...] = never_stored(
        1, LENGTHS, "Pixels from one patch to the next along each spatial axis."
    )
    memory_budget: int | None = common.memory_budget()
    flatten: bool = common.flatten("feature maps", "n_features")
    weights: Any = common.weights(
        "The mean at each place is removed, not that of all patches, in one more pass; it is kept as ``sample_mean_``.",
        passes="",
    )


@dataclass(eq=False, repr=False)
class CascadeParameters:
    """Parameters of `PatchCascade`."""

    n_components: Sequence[int] = never_stored((8, 32), sequence(whole(1)), "Components of each layer, at least one.")
    patch_shape: int | tuple[int, ...] = never_stored(5, LENGTHS, "As in `PatchPCA`, in every layer.")
    pool: int = always_stored(2, whole(1), "Side of the blocks that maps are averaged over.")
    whitening: float | None = always_stored(
        0.01,
        number(above=0),
        "Divide each filter by the root of its variance plus this share of the largest variance. This increases the "
        "weight of directions of small variance. None keeps the filters orthonormal.",
        none=True,
    )
    rectify: bool = always_stored(
        True, FLAG, "Whether maps y become max(y, 0) and max(-y, 0). Otherwise all layers together are one linear map."
    )
    filters: str = always_stored(
        "pca",
        choice("pca", "random"),
        "Random orthonormal filters are a baseline for comparison. They are not whitened.",
    )
    random_state: Any = common.random_state("Seed of random filters.")
    memory_budget: int | None = common.memory_budget()
    flatten: bool = common.flatten("features", "n_features")
