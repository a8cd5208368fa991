"""The update rules that `StreamingPCA` knows by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja, SecondStrategy
from dpca.rules.block_power import BlockPower
from dpca.rules.ccipca import CCIPCA
from dpca.rules.implicit_krasulina import ImplicitKrasulina
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.ipca import IPCA
from dpca.rules.krasulina import Krasulina
from dpca.rules.minibatch import InBatches
from dpca.rules.oja import Oja, OjaSubspace
from dpca.rules.sanger import Sanger
from dpca.rules.similarity_matching import SimilarityMatching
from storage.errors import DataError

Builder = Callable[[int, bool, int, int], Any]
"""(n_components, center, oversampling, seed) -> rule."""

METHODS: dict[str, Builder] = {
    "incremental-svd": lambda k, center, oversampling, seed: IncrementalSVD(k, oversampling, center),
    "oja": lambda k, center, _, seed: Oja(k, center=center, seed=seed),
    "oja-subspace": lambda k, center, _, seed: OjaSubspace(k, center=center, seed=seed),
    "krasulina": lambda k, center, _, seed: Krasulina(k, center=center, seed=seed),
    "sanger": lambda k, center, _, seed: Sanger(k, center=center, seed=seed),
    "implicit-krasulina": lambda k, center, _, seed: ImplicitKrasulina(k, center=center, seed=seed),
    "block-power": lambda k, center, _, seed: BlockPower(k, center=center, seed=seed),
    "accelerated-block-power": lambda k, center, _, seed: AcceleratedBlockPower(
        k, SecondStrategy(seed=seed), center=center, seed=seed
    ),
    "accelerated-oja": lambda k, center, _, seed: AcceleratedOja(
        k, acceleration=SecondStrategy(seed=seed), center=center, seed=seed
    ),
    "ccipca": lambda k, center, _, seed: CCIPCA(k, center=center, seed=seed),
    "ipca": lambda k, center, *_: IPCA(k, center=center),
    "similarity-matching": lambda k, center, _, seed: SimilarityMatching(k, center=center, seed=seed),
}
DEFAULT_OVERSAMPLING = 50
DEFAULT_BATCH = 100


def make_rule(method: str, k: int, *, center: bool, oversampling: int | None, batch_size: int | None, seed: int) -> Any:
    """Return the rule of a method, which gets its samples in batches of ``batch_size``.

    Raises
    ------
    DataError
        For a method that does not exist, or a size that makes no sense.
    """
    if method not in METHODS:
        raise DataError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    if oversampling is not None and method != "incremental-svd":
        raise DataError(f"oversampling has no meaning for {method}: leave it out, or use incremental-svd")
    extra = DEFAULT_OVERSAMPLING if oversampling is None else oversampling
    try:
        rule = METHODS[method](k, center, extra, seed)
    except ValueError as error:
        raise DataError(str(error)) from error
    if batch_size is None:
        size = rule.batch_rows("float32") if method == "incremental-svd" else DEFAULT_BATCH
    else:
        size = batch_size
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise DataError(f"batch_size is {size!r}: give a whole number of samples, at least 1")
    return InBatches(rule, int(size))
