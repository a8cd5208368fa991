"""Estimators with scikit-learn's conventions, over arrays and stores of any size."""

from __future__ import annotations

from dpca.models.cell_pca import CellPCA

__all__ = ["CellPCA"]
