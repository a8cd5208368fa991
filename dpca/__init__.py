"""Principal component analysis for image and volume stacks that do not fit in memory, on Dask and Zarr."""

from __future__ import annotations

from dpca import metrics
from dpca.models import PCA, BandPCA, CellPCA, StreamingPCA, open_scores

__all__ = ["PCA", "BandPCA", "CellPCA", "StreamingPCA", "metrics", "open_scores"]
__version__ = "0.1.0"
