"""Update rules: the mathematics, one rule per file. Rules process arrays and use neither Dask, nor Zarr, nor files.

This package exports the streaming rules, which `dpca.StreamingPCA` supports as ``method``, and their schedules.
"""

from __future__ import annotations

from dpca.rules.base.schedules import Constant, Delayed, FirstStrategy, Harmonic, Increasing, Power, SecondStrategy
from dpca.rules.covariance.streaming_covariance import StreamingCovariance
from dpca.rules.incremental.ccipca import CCIPCA
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.rules.incremental.ipca import IPCA
from dpca.rules.kernel.gains import Gains, gains_of, tune
from dpca.rules.stochastic.accelerated import AcceleratedBlockPower, AcceleratedOja
from dpca.rules.stochastic.block_power import BlockPower
from dpca.rules.stochastic.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from dpca.rules.stochastic.oja import Krasulina, Oja, OjaSubspace, Sanger
from dpca.rules.stochastic.similarity_matching import SimilarityMatching

__all__ = [
    "CCIPCA",
    "IPCA",
    "AcceleratedBlockPower",
    "AcceleratedOja",
    "BlockPower",
    "Constant",
    "Delayed",
    "ExplicitKrasulina",
    "FirstStrategy",
    "Gains",
    "Harmonic",
    "ImplicitKrasulina",
    "Increasing",
    "IncrementalSVD",
    "Krasulina",
    "Oja",
    "OjaSubspace",
    "Power",
    "Sanger",
    "SecondStrategy",
    "SimilarityMatching",
    "StreamingCovariance",
    "gains_of",
    "tune",
]
