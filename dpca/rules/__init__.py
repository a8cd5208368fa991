"""Update rules: the mathematics, one rule per file. Rules process arrays and use neither Dask, nor Zarr, nor files.

This package exports the streaming rules, which `dpca.StreamingPCA` supports as ``method``, and their schedules.
"""

from __future__ import annotations

from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja
from dpca.rules.block_power import BlockPower
from dpca.rules.ccipca import CCIPCA
from dpca.rules.gains import Gains, gains_of, tune
from dpca.rules.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.ipca import IPCA
from dpca.rules.oja import Krasulina, Oja, OjaSubspace, Sanger
from dpca.rules.schedules import Constant, Delayed, FirstStrategy, Harmonic, Increasing, Power, SecondStrategy
from dpca.rules.similarity_matching import SimilarityMatching
from dpca.rules.streaming_covariance import StreamingCovariance

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
