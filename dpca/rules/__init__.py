"""Update rules: the mathematics, one rule a file; arrays in, arrays out, no Dask, no Zarr, no files."""

from __future__ import annotations

from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja, FirstStrategy, Increasing, SecondStrategy
from dpca.rules.block_power import BlockPower
from dpca.rules.ccipca import CCIPCA
from dpca.rules.covariance import Covariance, CovariancePCA
from dpca.rules.dual import Dual, dual_components, dual_pca
from dpca.rules.implicit_krasulina import ExplicitKrasulina, ImplicitKrasulina
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.ipca import IPCA
from dpca.rules.krasulina import Krasulina
from dpca.rules.minibatch import InBatches
from dpca.rules.moments import Moments
from dpca.rules.oja import Oja, OjaSubspace
from dpca.rules.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from dpca.rules.refinement import Refinement
from dpca.rules.sanger import Sanger
from dpca.rules.schedules import Constant, Delayed, Harmonic, Power, Schedule
from dpca.rules.similarity_matching import SimilarityMatching
from dpca.rules.state import Rule, State

__all__ = [
    "CCIPCA",
    "IPCA",
    "AcceleratedBlockPower",
    "AcceleratedOja",
    "BlockPower",
    "Constant",
    "Covariance",
    "CovariancePCA",
    "Delayed",
    "Dual",
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
    "Power",
    "Refinement",
    "Rule",
    "Sanger",
    "Schedule",
    "SecondStrategy",
    "SimilarityMatching",
    "State",
    "dual_components",
    "dual_pca",
    "mse_per_sample",
    "psnr_from_mse",
    "ssim_per_sample",
]
