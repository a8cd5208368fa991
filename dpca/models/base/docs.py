"""Shared passages of the docstrings of estimators. A docstring refers to a passage by its name in braces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpca.parameters.declaration import section

E = TypeVar("E", bound=type)

# For all estimators.
SHARED = {
    "whole_samples": """\
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance. The entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers. Rows beyond the rank of the data are arbitrary. A Dask array if the components
        are on disk, see the guide "Few large samples"; so is ``mean_``.
    mean_ : array (n_features,), float64
        Of the samples, also with ``weights``.
    weights_ : array (n_features,), float64
        The weights of the attributes. Exists only with ``weights``.
    total_variance_ : float
        Certificate: the sum of the variances of all attributes, exact.
    n_components_, n_features_in_, n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds and peak memory of the first pass.
""",
    "where": """\
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array. Otherwise runs
    on threads of this process.
""",
}
#: For the estimators of cells and of bands.
PARTITIONED = {
    "components": """\
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        ``components_[j]`` has the shape of a sample and contains component j of each {part} at the positions of its
        attributes. The components of a {part} are orthonormal and ordered by variance. The entry of largest magnitude
        is positive. If a {part} has fewer attributes than components, the surplus components are zero. A Dask array if
        the components are on disk, see the guide "Few large samples"; so is ``mean_``.
""",
    "attributes": """\
    mean_ : array (*sample_shape), float64
        Of the samples, also with ``weights``; variances are those of weighted samples.
    weights_ : array (*sample_shape), float64
        The weights of the attributes. Exists only with ``weights``.
    explained_variance_ : array ({grid}, n_components), float64
        Variance of the scores, in squared units of the input (divisor n - 1).
    explained_variance_ratio_ : array ({grid}, n_components), float64
        The same divided by the total variance of the {part}; 0 if the {part} is constant.
    total_variance_ : array ({grid}), float64
        Certificate: (total - sum explained) (n - 1) / n is exactly the squared error of a {part}, summed over its
        attributes and averaged over the samples of the fit. With incremental SVD it is an upper bound of the error.
    singular_values_ : array ({grid}, n_components), float64
    ranks_ : array ({grid}), int
        Number of components that each {part} retains; further components are zero.
    target_reached_ : float
        Value of the quality measure on the samples of the target. Exists only if there is a target.
    target_standard_error_ : float
        Standard error of ``target_reached_`` over these samples; 0 for the squared error of the samples of the fit.
    validation_samples_ : array of int
        Numbers of the held-out samples, ascending. Exists only with ``validation_fraction``.
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds and peak memory of the pass that found the components. ``note`` describes the folded rule and the
        number of reads of the stack.
""",
    "costs": """\
    {where}
    Costs O(n d) reads and O(n d c) arithmetic for {parts} of c attributes. A task holds covariances of 8 c**2 bytes
    each; the planner bounds this memory before anything runs. If not all covariances fit into the memory budget, they
    are accumulated in groups, and a chunk with attributes of several groups is decoded once for each group. If this
    would take more than 8 reads of the stack, or a single covariance does not fit, each {part} is folded by incremental
    SVD instead, provided that this requires fewer reads by that factor.
""",
}
#: For the estimators of two fields.
COUPLED = {
    "attributes": """\
    squared_covariance_fraction_, covariance_fraction_, correlation_ : the same
        Share of the total squared covariance; share of the singular values of these modes; correlation of the scores of
        both fields.
    explained_variance_ratio_ : tuple of two, the same
        Share of the variance of each field that its scores explain, of what the principal components retain.
    total_squared_covariance_ : float
        Sum of the squares of the covariances of all pairs of grid points, of what the principal components retain.
    pca_variance_ratio_ : tuple of two float
        Share of the variance of each field that its principal components retain; 1 if none are omitted.
    n_samples_seen_ : int
    sample_shapes_ : tuple of two tuples of int
""",
    "costs": """\
    For d = d_x + d_y grid points, a pass costs O(n d^2) operations and 8 d^2 bytes with the solver "covariance", and
    O(n^2 d) and 8 n^2 bytes with "dual". Sums of "covariance" over 8-bit and 16-bit integers without weights are exact:
    modes are then bit-identical for any chunks and workers. `save` stores the scores if computed, and no samples.
    {where}
""",
}


def documented(**texts: str) -> Callable[[E], E]:
    """Return a decorator that replaces ``{name}`` in the docstring of a class by the text of that name.

    ``{parameters}`` is replaced by the documentation of all parameters. A text that replaces a whole paragraph has the
    indentation of the docstring and ends with a line break.
    """

    def write(cls: E) -> E:
        doc = cls.__doc__ or ""  # python -OO removes docstrings
        for name, text in ({"parameters": section(cls)} | texts | SHARED).items():
            doc = doc.replace(f"    {{{name}}}\n", text).replace(f"{{{name}}}", text)
        cls.__doc__ = doc
        return cls

    return write
