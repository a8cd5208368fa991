"""Passages that docstrings of several estimators share; each stands there as a name in braces."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

E = TypeVar("E", bound=type)

# Of all estimators.
SHARED = {
    "memory_budget": """\
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.
""",
    "keep_state": """\
    keep_state : bool
        Whether a model that `fit` fitted, and one that `load` reads, can go on with `partial_fit`: the state of the fit
        is then kept in memory, as large as that of `partial_fit`, and stored by `save`.
""",
    "whiten": """\
    whiten : bool
        Whether `transform` divides each score by the standard deviation along its component, so that its variance is 1.
        `inverse_transform` multiplies by it.
""",
    "whole_samples": """\
    components_ : array (n_components, n_features)
        Orthonormal rows, ordered by variance; the entry of largest magnitude is positive. float32, or float64 for
        float64 input and wide integers. Beyond the rank of the data they are arbitrary.
    mean_ : array (n_features,), float64
    total_variance_ : float
        Certificate: the sum of all variances of the samples, exact.
    n_components_, n_features_in_, n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the first pass.
""",
    "where": """\
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process.
""",
}
#: Of the estimators of cells and of bands.
PARTITIONED = {
    "n_components": """\
    n_components : int, "marchenko-pastur" or None
        Components of each {part}; None keeps all; "marchenko-pastur" those whose variance noise of one level does not
        explain (Veraart et al. 2016). A {part} with fewer attributes keeps all of its own.
""",
    "choices": """\
    threshold : float, optional
        Instead of ``n_components``: each {part} keeps the fewest components that explain more than this share of its
        variance (Alakkari 2020, section 4.1), at most ``max_components``.
    total_components : int, optional
        Instead: so many components in all, spread over the {parts} to leave the least squared error.
    ratio : float, optional
        Instead: attributes of a sample for each of its scores. So many components in all, rounded to an integer, are
        spread likewise.
    target_mse, target_psnr : float, optional
        Instead: the fewest components, spread likewise, whose mean squared error is at most this, of values scaled so
        that ``data_range`` has length 1, or whose peak signal-to-noise ratio of that error is at least this, in dB,
        before values are rounded to pixels. Met on the samples of the fit unless ``validation_fraction`` is given.
        It follows from the eigenvalues, without a second pass; exactly, unless {parts} were folded by incremental SVD,
        whose error is at most what they say.
    target_ssim : float, optional
        Instead: the fewest components, spread likewise, whose mean SSIM (uniform windows of 7 pixels a side, values
        rounded and clipped to pixels) is at least this. It is searched on 500 samples spread over the stack, of those
        that ``validation_fraction`` leaves out where it is given, which are read once and held in memory with their
        scores; on fewer where these would take more than half of ``memory_budget``.
    validation_fraction : float, optional
        Share of the samples, at most .5, that is left out of the fit, and on which a target is met instead: it then
        holds for samples that the fit did not see, which components of few samples represent worse. At most 10,000
        samples, spread over the stack by ``random_state``; they are read once more, a twentieth of a large stack at
        most.
    max_components : int, optional
        Bound on the components of each {part} where their numbers differ, and how many are computed. Default four times
        the mean, or a third of the attributes where no mean is asked for; a `RankWarning` says where that is too few.
    data_range : tuple of float, optional
        Smallest and largest possible value, for the targets; default what the stack states, or that of
        ``bool`` and ``uint8``; of other values what they span, found in a pass over them before the fit.
""",
    "flatten": """\
    flatten : bool
        Whether `transform` returns the scores of a sample along one axis, (n_samples, {parts} * n_components), as the
        steps of a scikit-learn ``Pipeline`` expect it. `inverse_transform` takes both.
""",
    "components": """\
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        Component j of every {part} at the places of its attributes: ``components_[j]`` looks like a sample. Rows of a
        {part} are orthonormal, ordered by variance; the entry of largest magnitude is positive. Where a {part} has
        fewer attributes than there are components, the surplus rows are zero.
""",
    "attributes": """\
    mean_ : array (*sample_shape), float64
    explained_variance_ : array ({grid}, n_components), float64
        Variance of the scores, in squared units of the input (divisor n - 1).
    explained_variance_ratio_ : array ({grid}, n_components), float64
        The same divided by the {part}'s total variance; 0 where a {part} is constant.
    total_variance_ : array ({grid}), float64
        Certificate: (total - sum explained) (n - 1) / n is exactly the squared error of a {part}, summed over its
        attributes and averaged over the samples of the fit; where incremental SVD was used, the error is at most that.
    singular_values_ : array ({grid}, n_components), float64
    ranks_ : array ({grid}), int
        Components that each {part} keeps; its rows of ``components_`` beyond are zero.
    target_reached_ : float
        Value of the target's measure on the samples that it was met on; only where there is a target.
    target_standard_error_ : float
        Its standard error, by how much these samples differ; 0 for the squared error of the samples of the fit.
    validation_samples_ : array of int
        Numbers of the samples that were left out of the fit, ascending; only with ``validation_fraction``.
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the pass that found the components; ``note`` says in a sentence what was folded,
        and how often the stack was read for it.
""",
    "costs": """\
    {where}
    Costs O(n d) reads and O(n d c) arithmetic for {parts} of c attributes, and memory for the covariances that
    a task holds, which the planner bounds before anything runs. Those that do not fit the memory budget together
    take turns; a chunk that such groups share is decoded for each of them. Where this would be more than 8 reads of the
    stack, or one covariance alone is too much (it takes 8 c**2 bytes), every {part} is folded by incremental SVD
    instead, if that needs fewer reads by that factor.
""",
}


def documented(**texts: str) -> Callable[[E], E]:
    """Return a decorator that writes texts into the docstring of a class, in the place of ``{their name}``.

    What stands for a whole paragraph is indented as in the docstring and ends with a line break.
    """

    def write(cls: E) -> E:
        doc = cls.__doc__ or ""  # nothing under python -OO
        for name, text in (texts | SHARED).items():
            doc = doc.replace(f"    {{{name}}}\n", text).replace(f"{{{name}}}", text)
        cls.__doc__ = doc
        return cls

    return write
