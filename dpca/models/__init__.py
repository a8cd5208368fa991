"""Estimators with the scikit-learn interface, for arrays and stores of any size."""

from __future__ import annotations

from dpca.models.band_pca import BandPCA
from dpca.models.cell_pca import CellPCA
from dpca.models.convergence import ConvergenceWarning, OrderWarning
from dpca.models.eof import EOF
from dpca.models.eof_fit import GapWarning
from dpca.models.kernel_pca import KernelPCA
from dpca.models.patch_cascade import PatchCascade
from dpca.models.patch_pca import PatchPCA
from dpca.models.pca import PCA
from dpca.models.ridge_classifier import StreamingRidgeClassifier
from dpca.models.scores import open_scores
from dpca.models.spectral_clustering import SpectralClustering
from dpca.models.streaming_pca import StreamingPCA
from dpca.models.trajectory_pca import TrajectoryPCA
from dpca.models.watching import Progress
from dpca.representation.compressed import open_compressed

__all__ = [
    "EOF",
    "PCA",
    "BandPCA",
    "CellPCA",
    "ConvergenceWarning",
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
