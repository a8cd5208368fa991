"""Shared passages of the docstrings of estimators. A docstring refers to a passage by its name in braces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=type)

# For all estimators.
SHARED = {
    "memory_budget": """\
    memory_budget : int, optional
        Most bytes that one task may use, in addition to the memory that its process already holds. Default: from the
        memory limits of the workers or of the machine.
""",
    "keep_state": """\
    keep_state : bool
        Whether `partial_fit` can continue after `fit` or `load`. If True, the model keeps the state of the fit in
        memory, as large as the state of `partial_fit`, and `save` stores it.
""",
    "whiten": """\
    whiten : bool
        Whether `transform` divides each score by the standard deviation along its component, for unit variance.
        `inverse_transform` multiplies by it.
""",
    "whole_samples": """\
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance. The entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers. Rows beyond the rank of the data are arbitrary.
    mean_ : array (n_features,), float64
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
    "n_components": """\
    n_components : int, "marchenko-pastur" or None
        Number of components of each {part}. None keeps all. "marchenko-pastur" keeps the components above the noise
        floor and assumes the same noise level in all attributes (Veraart et al. 2016). A {part} with fewer attributes
        keeps all of its components.
""",
    "choices": """\
    threshold : float, optional
        Alternative to ``n_components``: each {part} keeps the fewest components that explain more than this share of
        its variance (Alakkari 2020, section 4.1), at most ``max_components``.
    total_components : int, optional
        Alternative: the number of components of all {parts} together, distributed for the least squared error.
    ratio : float, optional
        Alternative: the number of attributes of a sample per score. The total number of components follows, rounded to
        an integer, and is distributed likewise.
    target_mse, target_psnr : float, optional
        Alternative: the fewest components, distributed likewise, that reach this mean squared error or this peak
        signal-to-noise ratio in dB. The error refers to values scaled so that ``data_range`` has length 1, before they
        are rounded to pixels. The target holds for the samples of the fit, or for the samples that
        ``validation_fraction`` holds out. It follows from the eigenvalues, without a second pass. It is exact, except
        that with incremental SVD the eigenvalues are an upper bound of the error.
    target_ssim : float, optional
        Alternative: the fewest components, distributed likewise, that reach this mean SSIM (uniform windows of 7 pixels
        a side, values rounded and clipped to pixels). The search uses 500 samples spread over the stack, or over the
        held-out samples if there is a ``validation_fraction``. They are read once and held in memory with their scores.
        Fewer samples are used if they would take more than half of ``memory_budget``.
    validation_fraction : float, optional
        Share of the samples, at most .5, that is held out of the fit. The target then holds for these samples. Held-out
        samples have a larger error than fitted ones if there are few samples. At most 10,000 samples are held out,
        spread over the stack by ``random_state``. They are read once more, at most a twentieth of a large stack.
    max_components : int, optional
        Largest number of components of each {part} if the numbers differ. This many are computed. Default: four times
        the mean number, or a third of the attributes if no mean is given. A `RankWarning` reports if that is too few.
    data_range : tuple of float, optional
        Smallest and largest possible value, for the targets. Default: the data range of the stack, or the full range of
        ``bool`` and ``uint8``. For other values, a pass before the fit finds their range.
""",
    "flatten": """\
    flatten : bool
        Whether `transform` returns the scores of a sample along one axis, (n_samples, {parts} * n_components), as a
        scikit-learn ``Pipeline`` expects. `inverse_transform` supports both forms.
""",
    "components": """\
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        ``components_[j]`` has the shape of a sample and contains component j of each {part} at the positions of its
        attributes. The components of a {part} are orthonormal and ordered by variance. The entry of largest magnitude
        is positive. If a {part} has fewer attributes than components, the surplus components are zero.
""",
    "attributes": """\
    mean_ : array (*sample_shape), float64
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


def documented(**texts: str) -> Callable[[E], E]:
    """Return a decorator that replaces ``{name}`` in the docstring of a class by the text of that name.

    A text that replaces a whole paragraph has the indentation of the docstring and ends with a line break.
    """

    def write(cls: E) -> E:
        doc = cls.__doc__ or ""  # python -OO removes docstrings
        for name, text in (texts | SHARED).items():
            doc = doc.replace(f"    {{{name}}}\n", text).replace(f"{{{name}}}", text)
        cls.__doc__ = doc
        return cls

    return write
