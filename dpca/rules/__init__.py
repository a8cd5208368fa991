"""Update rules: the mathematics, one rule a file; arrays in, arrays out, no Dask, no Zarr, no files."""

from __future__ import annotations

from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja, FirstStrategy, Increasing, SecondStrategy
from dpca.rules.block_power import BlockPower
from dpca.rules.captured import Captured
from dpca.rules.ccipca import CCIPCA
from dpca.rules.covariance import Covariance, CovariancePCA
from dpca.rules.covariance_product import CovarianceProduct
from dpca.rules.dual import Dual, dual_components, dual_pca
from dpca.rules.dual_blocks import BlockGram, DualComponents
from dpca.rules.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.ipca import IPCA
from dpca.rules.krasulina import Krasulina
from dpca.rules.minibatch import InBatches
from dpca.rules.moments import Moments
from dpca.rules.oja import Oja, OjaSubspace
from dpca.rules.pooled_covariance import PooledCovariancePCA
from dpca.rules.power_iteration import PowerIteration
from dpca.rules.rayleigh_ritz import RayleighRitz
from dpca.rules.refinement import Refinement
from dpca.rules.sanger import Sanger
from dpca.rules.schedules import Constant, Delayed, Harmonic, Power, Schedule
from dpca.rules.similarity_matching import SimilarityMatching
from dpca.rules.state import Rule, State
from dpca.rules.vr_pca import VRPCA
from dpca.rules.watched import Watched

__all__ = [
    "CCIPCA",
    "IPCA",
    "VRPCA",
    "AcceleratedBlockPower",
    "AcceleratedOja",
    "BlockGram",
    "BlockPower",
    "Captured",
    "Constant",
    "Covariance",
    "CovariancePCA",
    "CovarianceProduct",
    "Delayed",
    "Dual",
    "DualComponents",
    "ExplicitKrasulina",
    "FirstStrategy",
    "Harmonic",
    "ImplicitKrasulina",
    "InBatches",
    "Increasing",
    "IncrementalSVD",
    "Krasulina",
    "Moments",
    "Oja",
    "OjaSubspace",
    "PooledCovariancePCA",
    "Power",
    "PowerIteration",
    "RayleighRitz",
    "Refinement",
    "Rule",
    "Sanger",
    "Schedule",
    "SecondStrategy",
    "SimilarityMatching",
    "State",
    "Watched",
    "dual_components",
    "dual_pca",
]
