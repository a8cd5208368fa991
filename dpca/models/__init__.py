"""Estimators with the scikit-learn interface, for arrays and stores of any size."""

from __future__ import annotations

from dpca.models.base.callbacks import Progress
from dpca.models.base.convergence import ConvergenceWarning, OrderWarning
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.coupled.cca import CCA
from dpca.models.coupled.mca import MCA
from dpca.models.denoising.denoiser import Denoiser
from dpca.models.eof.eof import EOF
from dpca.models.eof.eof_fit import GapWarning
from dpca.models.kernel.kernel_pca import KernelPCA
from dpca.models.kernel.spectral_clustering import SpectralClustering
from dpca.models.linear.pca import PCA
from dpca.models.linear.trajectory_pca import TrajectoryPCA
from dpca.models.patches.patch_cascade import PatchCascade
from dpca.models.patches.patch_pca import PatchPCA
from dpca.models.scores import open_scores
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.models.supervised.ridge_classifier import StreamingRidgeClassifier
from dpca.representation.compressed.compressed import open_compressed

__all__ = [
    "CCA",
    "EOF",
    "MCA",
    "PCA",
    "BandPCA",
    "CellPCA",
    "ConvergenceWarning",
    "Denoiser",
    "GapWarning",
    "KernelPCA",
    "OrderWarning",
    "PatchCascade",
    "PatchPCA",
    "Progress",
    "SpectralClustering",
    "StreamingPCA",
    "StreamingRidgeClassifier",
    "TrajectoryPCA",
    "open_compressed",
    "open_scores",
]
