"""KernelPCA: kernel principal component analysis of data of any size, in one pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.source import Source
from dpca.kernels.algebra.dtypes import working_dtype
from dpca.kernels.algebra.types import Array
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.docs import documented
from dpca.models.base.parameters import check_parameters, checked_rank, no_values, require_seed
from dpca.models.base.passes import Passes
from dpca.models.base.samples import varied_source
from dpca.models.kernel.kernel_hebbian import hebbian
from dpca.models.kernel.kernel_methods import ALL_SAMPLES, Found, KernelProblem, exact, nystrom, plan, plan_exact
from dpca.models.kernel.kernel_model import KernelModel
from dpca.parameters.kernel import KernelParameters
from dpca.representation.base import Representation
from dpca.representation.kernel import KernelRepresentation
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import require_one_array
from dpca.storage.run import Run

# Default number of landmarks: the larger of a fixed number and a number for each component.
_LANDMARKS, _PER_COMPONENT = 500, 10
#: Functions of a problem and the passes over its source that find the components.
KERNEL_METHODS: dict[str, Callable[[KernelProblem, Passes], Found]] = {
    "nystrom": nystrom,
    "exact": exact,
    "kha": hebbian,
}


@documented()
class KernelPCA(KernelParameters, KernelModel):
    """Kernel principal component analysis (Schölkopf, Smola & Müller 1998) of any number of samples, in one pass.

    The components lie in the span of some samples, the landmarks, in feature space (Nyström method; Williams & Seeger
    2001). The data are centered in feature space. The components are the optimal ones within this span, and the
    eigenvalues are exactly the sums of squares that they capture.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    eigenvalues_ : array (n_components,), float64
        Sums of squares of the scores of the samples of the fit, descending, as in scikit-learn.
    landmarks_ : array (n_landmarks, n_features)
        float32, or float64 for float64 input, wide integers, and method "exact". A Dask array over the samples of the
        fit if these do not fit into a task: `transform` then reads blocks of attributes of them, and `save`,
        `inverse_transform` and jobs require that they fit into memory.
    coefficients_ : array (n_landmarks, n_components), float64
        Coefficients of the components in the images of the landmarks. Scores are the kernels with the landmarks times
        these, minus ``offset_`` (n_components,). ``mean_coefficients_`` (n_landmarks,) are the coefficients of the
        mean.
    landmark_scores_ : array (n_landmarks, n_components), float64
        With method "exact", the scores of the samples of the fit.
    total_ : float
        The sum of all eigenvalues. With "nystrom" it may be too high by the part of the mean outside of the span.
    residual_ : float
        Certificate: the part of ``total_`` outside of the span of the landmarks. No components capture more than these
        plus the residual.
    captured_bound_ : float
        Certificate: these components capture at least this share of the optimum. It is sharper than a bound from
        ``residual_``, as only the leading directions of the residual count. They are estimated from 1,000 random
        samples, plus three standard errors; `partial_fit` draws no samples and counts the whole residual. Rounding of
        the kernels is treated as random. The bound is therefore not a proof, unlike that of `StreamingPCA`.
    gamma_, inverse_gamma_ : float
    n_components_, n_features_in_, n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds and peak memory of the pass.

    Notes
    -----
    {where}
    Costs 2 n m (d + m / 2) operations for m landmarks of d attributes, and O(m^3) at the end. A task holds the
    landmarks and about a dozen matrices of m x m; the planner bounds this memory before anything runs. If samples are
    8-bit integers of at least 256 attributes, and landmarks are samples, their inner products and squared distances are
    exact, and cost less where the processor has dot-product instructions. For few samples
    with very many attributes, use method "exact". For many, use their scores instead, such as
    ``dpca.open_scores(path).scores``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import KernelPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (300, 20, 30), dtype=np.uint8)
    >>> model = KernelPCA(5, n_landmarks=100, random_state=0).fit(images)
    >>> model.transform(images).shape
    (300, 5)
    >>> model.inverse_transform(model.transform(images)).shape
    (300, 20, 30)
    """

    store_kind: ClassVar[str] = "kernel-pca"
    any_weights: ClassVar[bool] = True

    # -- fitting

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        source = varied_source(self, X)
        drawn = self.method == "kha" or (self.method == "nystrom" and isinstance(self.landmarks, str))
        if run.checkpoints is not None and drawn:
            require_seed(self.random_state)
        if source.weights is not None and self.method == "kha":
            raise DataError("method='kha' requires whole numbers in sample_weight: round them, or use method='nystrom'")
        problem = self._problem(source.shape[0], tuple(source.shape[1:]), source.dtype)
        passes = Passes(source, run, callbacks=callbacks)

        def set_fitted(model: Any, found: Found, n: int) -> None:
            model._set_results(found, tuple(source.shape[1:]), n)
            model._states = None

        passes.set_fitted = set_fitted
        set_fitted(self, named_errors(KERNEL_METHODS[self.method], source.name)(problem, passes), source.shape[0])
        self.fit_report_ = passes.report

    def _problem(self, n: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> KernelProblem:
        """Return the checked problem for n samples, or for any number if n is None."""
        check_parameters(self)
        if self.method not in KERNEL_METHODS:
            raise DataError(f"method is {self.method!r}: choose one of {', '.join(KERNEL_METHODS)}")
        if self.kernel == "precomputed" and self.method != "exact":
            raise DataError(f"method is {self.method!r} but kernel='precomputed' requires 'exact': use method='exact'")
        if self.pre_image == "fixed-point" and self.kernel != "rbf":
            raise DataError(f"pre_image is 'fixed-point' but kernel is {self.kernel!r}: use 'ridge', or kernel='rbf'")
        k = checked_rank(self.n_components, sys.maxsize, n)
        m, landmarks = self._landmarks(k, n, shape, dtype)
        if k > m:
            raise DataError(
                f"n_components is {k} but there are only {m} landmarks: give at most that many components, or more "
                f"landmarks"
            )
        if self.method != "kha" and (self.gains is not None or self.n_passes > 1):
            raise DataError(f"gains and n_passes do not apply to method={self.method!r}: remove them, or use 'kha'")
        takes_all = self.method == "exact"
        drawn = self.method == "kha" or (not takes_all and isinstance(landmarks, str))
        return KernelProblem(
            k,
            m,
            self.kernel,
            self.gamma,
            int(self.degree),
            float(self.coef0),
            landmarks,
            np.dtype(np.float64) if takes_all else working_dtype(dtype),
            self._seed() if drawn else 0,
            gains=self.gains,
            n_passes=int(self.n_passes),
        )

    def _landmarks(
        self, k: int, n: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[int, str | Array]:
        """Return the number of landmarks, and the method of choice or the landmarks."""
        given, count = self.landmarks, self.n_landmarks
        wanted = max(_LANDMARKS, _PER_COMPONENT * k) if count is None else int(count)
        if self.method == "exact":
            if count is not None or not isinstance(given, str) or given != "cholesky":
                raise DataError("method='exact' uses all samples as landmarks: remove n_landmarks and landmarks")
            return wanted if n is None else n, ALL_SAMPLES
        if isinstance(given, str):
            if n is not None and count is not None and wanted > n:
                raise DataError(f"n_landmarks is {wanted} but there are only {n} samples: give at most that many")
            return min(wanted, wanted if n is None else n), given
        if count is not None:
            raise DataError(f"n_landmarks is {count!r} but landmarks is an array: remove n_landmarks")
        require_one_array(given, "landmarks")
        try:
            points = np.asarray(given)
        except ValueError as error:
            raise DataError(f"landmarks are not an array ({error}): give numbers (n_landmarks, *{shape})") from error
        if (
            points.dtype.kind not in "buif"
            or points.ndim < 2
            or not points.size
            or (shape and points.shape[1:] != shape)
        ):
            raise DataError(
                f"landmarks have dtype {points.dtype} and shape {points.shape}: give numbers (n_landmarks, *{shape})"
            )
        if not np.isfinite(points).all():
            raise DataError("landmarks contain NaN or infinity: give finite values")
        points = points.reshape(len(points), -1)
        return len(points), points.astype(np.result_type(working_dtype(dtype), working_dtype(points.dtype)), copy=False)

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        shape = tuple(source.shape[1:])
        problem = self._problem(source.shape[0], shape, source.dtype)
        planned = plan_exact if self.method == "exact" else plan
        planned(problem, Passes(source, run.limited_to(self.memory_budget)))
        k, m = problem.k, problem.n_landmarks
        points, kernel = no_values((m, math.prod(shape)), problem.dtype), Kernel(problem.kernel)
        scores, one = no_values((m, k), np.float64), no_values((m,), np.float64)
        maps = KernelMap(kernel, points), scores, no_values((k,), np.float64), one, scores
        return KernelRepresentation(shape, *maps, self.pre_image, kernel, 1.0), True

    # -- jobs and reports

    def check_parameters_for(self, n_samples: int) -> None:
        """Reject parameters that are invalid for this number of samples, as far as this is known without the data."""
        self._problem(n_samples or None, (), np.dtype(np.float32))

    def fit_description(self, axes: Sequence[str]) -> str:
        """Return a description of the fit for logs."""
        return f"{self.n_components} components of the {self.kernel} kernel by {self.method}"
