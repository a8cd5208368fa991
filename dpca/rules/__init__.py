"""Update rules: the mathematics, one rule a file; arrays in, arrays out, no Dask, no Zarr, no files."""

from __future__ import annotations

from dpca.rules.covariance import Covariance, CovariancePCA
from dpca.rules.dual import Dual, dual_components, dual_pca
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.moments import Moments
from dpca.rules.quality import mse_per_sample, psnr_from_mse, ssim_per_sample
from dpca.rules.state import Rule, State

__all__ = [
    "Covariance",
    "CovariancePCA",
    "Dual",
    "IncrementalSVD",
    "Moments",
    "Rule",
    "State",
    "dual_components",
    "dual_pca",
    "mse_per_sample",
    "psnr_from_mse",
    "ssim_per_sample",
]
