"""Estimators with scikit-learn's conventions, over arrays and stores of any size."""

from __future__ import annotations

from dpca.models.cell_pca import CellPCA
from dpca.models.streaming_pca import OrderWarning, StreamingPCA

__all__ = ["CellPCA", "OrderWarning", "StreamingPCA"]
