"""Folds of rules over stores, on Dask: planning, reading ahead, merging, checkpoints, memory. Independent of PCA."""
