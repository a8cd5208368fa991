"""Estimators with one mean and one set of components for whole samples, as exact as the data allow.

`PCA` is the reference; `pca_solvers` has its solvers and the choice among them.
`TrajectoryPCA` superposes the frames of a molecule first.
"""
