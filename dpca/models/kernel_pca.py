"""KernelPCA: nonlinear principal components of data of any size, in one pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from dpca.choices import KERNELS
from dpca.engine.boundary import guarded
from dpca.engine.source import Source
from dpca.kernels.dtypes import working_dtype
from dpca.kernels.inner_products import Kernel, KernelMap
from dpca.kernels.types import Array
from dpca.models.docs import documented
from dpca.models.kernel_hebbian import hebbian
from dpca.models.kernel_methods import Found, Problem, exact, nystrom, plan
from dpca.models.kernel_model import KernelModel
from dpca.models.landmarks import CHOICES
from dpca.models.parameters import checked_rank, no_values, require_seed
from dpca.models.passes import Passes
from dpca.models.samples import varied_source
from dpca.representation.base import Representation
from dpca.representation.kernel import PRE_IMAGES, KernelRepresentation
from dpca.rules.gains import Gains
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import is_real, require_one_array, whole_number

# Landmarks where their number is left open: so many, or so many for each component if that is more.
_LANDMARKS, _PER_COMPONENT = 500, 10
#: How components are found: functions of a problem and the passes over its source.
METHODS: dict[str, Callable[[Problem, Passes], Found]] = {"nystrom": nystrom, "exact": exact, "kha": hebbian}


@documented()
@dataclass(eq=False, repr=False)
class KernelPCA(KernelModel):
    """Kernel principal component analysis (Schölkopf, Smola & Müller 1998) of any number of samples, in one pass.

    The components lie in the span of some samples, the landmarks, in feature space (Nyström's method; Williams & Seeger
    2001): within it they are the best, centered, and their eigenvalues are exactly what they capture.

    Parameters
    ----------
    n_components : int
    kernel : {"rbf", "poly", "linear", "cosine", "precomputed"}
        As in scikit-learn. With "precomputed", samples are rows of a kernel matrix, which method "exact" takes.
    gamma : float, optional
        Of "rbf" and "poly". Default 1 / (2 s^2), s being the root mean square distance between samples, measured on
        those that landmarks are chosen from (scikit-learn's default is 1 / n_features).
    degree, coef0 : int, float
        Of "poly": (gamma x.z + coef0)^degree.
    method : {"nystrom", "exact", "kha"}
        "nystrom": one pass, after a look at up to 16,384 samples, and memory that does not grow with the samples.
        "exact": all samples are landmarks, which takes 12 matrices of n x n in float64 and O(n^3) time.
        "kha": the kernel Hebbian algorithm (Günter, Schraudolph & Vishwanathan 2007) in the span of the landmarks, to
        compare with: what "nystrom" finds, and then passes of steps in random order, which come close to it. It takes
        8 (n_components + 2) bytes more for each sample.
    n_landmarks : int, optional
        Default 500, or 10 for each component if that is more, and at most the samples. Fewer are taken where these
        already span all others.
    landmarks : {"cholesky", "uniform"} or array (n_landmarks, *sample_shape)
        How they are chosen: by randomly pivoted Cholesky (Chen, Epperly, Tropp & Webber 2022), which finds small
        groups of samples far from all others, or all alike. Or the landmarks themselves.
    pre_image : {"ridge", "fixed-point"}
        How `inverse_transform` estimates samples: by kernel ridge regression of the landmarks on their scores, as
        scikit-learn does of all samples (Bakir, Weston & Schölkopf 2003); or from there by the fixed point of Mika et
        al. 1999, of "rbf".
    alpha : float
        Penalty of the ridge, positive.
    inverse_gamma : float, optional
        Of the kernel of scores in it; default as that of ``gamma``, for scores of landmarks (scikit-learn uses
        ``gamma`` itself).
    gains : Gains, optional
        Of "kha": see `dpca.rules.gains_of`. Default KHA/et*, which decays to a twentieth over a pass, from the largest
        gain that does not diverge in the first 1,280 steps (`dpca.rules.tune`).
    n_passes : int
        Of "kha": over the data, all in one random order.
    random_state : int, RandomState or None
        Seed of the choice of landmarks, and of the order and the start of "kha".
    {memory_budget}

    Attributes
    ----------
    eigenvalues_ : array (n_components,), float64
        Sums of squares of the scores of the samples of the fit, descending: scikit-learn's.
    landmarks_ : array (n_landmarks, n_features)
        float32, or float64 for float64 input, wide integers, and method "exact".
    coefficients_ : array (n_landmarks, n_components), float64
        The components are the sums of the landmarks' images times these; the scores are the kernels with the landmarks
        times these, minus ``offset_`` (n_components,). Those of the mean are ``mean_coefficients_`` (n_landmarks,).
    landmark_scores_ : array (n_landmarks, n_components), float64
    total_ : float
        The sum of all eigenvalues; with "nystrom" at most that too high what the mean has outside of the span.
    residual_ : float
        Certificate: the part of it outside of the landmarks' span. No components capture more than these and it.
    captured_bound_ : float
        Certificate: the share of what the best components would capture that these capture at least. Sharper than by
        ``residual_``: of that only the leading directions count, as 1,000 samples drawn at random show them, with three
        standard errors to spare; `partial_fit` draws none, and counts all of it. Rounding of the kernels is counted in
        as chance, too: this is no proof, as that of `StreamingPCA` is.
    gamma_, inverse_gamma_ : float
    n_components_, n_features_in_, n_samples_seen_ : int
    sample_shape_ : tuple of int
    fit_report_ : FoldReport
        Plan, seconds, peak memory of the pass.

    Notes
    -----
    {where}
    Costs 2 n m (d + m / 2) operations for m landmarks of d attributes, and O(m^3) at the end; a task holds the
    landmarks and about a dozen matrices of m x m, which the planner bounds before anything runs. Samples of very many
    attributes can be given by their scores instead, such as ``dpca.open_scores(path).scores``.

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

    n_components: int
    _: KW_ONLY
    kernel: str = "rbf"
    gamma: float | None = None
    degree: int = 3
    coef0: float = 1.0
    method: str = "nystrom"
    n_landmarks: int | None = None
    landmarks: Any = "cholesky"
    pre_image: str = "ridge"
    alpha: float = 1.0
    inverse_gamma: float | None = None
    gains: Any = None
    n_passes: int = 1
    random_state: Any = None
    memory_budget: int | None = None

    # -- learning

    def _fit(self, X: Any, **running: Any) -> None:
        source = varied_source(self, X)
        drawn = self.method == "kha" or (self.method == "nystrom" and isinstance(self.landmarks, str))
        if running["checkpoints"] is not None and drawn:
            require_seed(self.random_state)
        problem = self._problem(source.shape[0], tuple(source.shape[1:]), source.dtype)
        passes = Passes(source, memory_budget=self.memory_budget, **running)

        def learn(model: Any, found: Found, n: int) -> None:
            model._settle(found, tuple(source.shape[1:]), n)
            model._states = None

        passes.settle = learn
        learn(self, guarded(METHODS[self.method], source.name)(problem, passes), source.shape[0])
        self.fit_report_ = passes.report

    def _problem(self, n: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Problem:
        """Return what is to be found in n samples, or any number of them, checked."""
        for name, choices in {"kernel": KERNELS, "method": METHODS, "pre_image": PRE_IMAGES}.items():
            if not isinstance(value := getattr(self, name), str) or value not in choices:
                raise DataError(f"{name} is {value!r}: choose one of {', '.join(choices)}")
        for name, least in {"gamma": None, "inverse_gamma": None, "alpha": 0.0, "coef0": -1e-300}.items():
            value = getattr(self, name)
            if not (value is None and least is None) and not _is_above(value, least or 0.0):
                what = "a number of at least 0" if name == "coef0" else "a positive number"
                raise DataError(f"{name} is {value!r}: give {what}{', or None for the default' * (least is None)}")
        if self.kernel == "precomputed" and self.method != "exact":
            raise DataError(f"method is {self.method!r} but a precomputed kernel has no landmarks: use method='exact'")
        if self.pre_image == "fixed-point" and self.kernel != "rbf":
            raise DataError(f"pre_image is 'fixed-point' but the kernel is {self.kernel}: use 'ridge', or kernel='rbf'")
        k = checked_rank(self.n_components, sys.maxsize, n)
        m, landmarks = self._landmarks(k, n, shape, dtype)
        if k > m:
            raise DataError(f"n_components is {k} but there are only {m} landmarks: ask for at most that many, or more")
        if not isinstance(self.gains, Gains | None):
            raise DataError(f"gains is {self.gains!r}: give gains of dpca.rules.gains_of, or None to find them")
        n_passes = whole_number(self.n_passes, "n_passes", 1)
        if self.method != "kha" and (self.gains is not None or n_passes > 1):
            raise DataError(f"method={self.method!r} takes no steps: leave gains and n_passes out, or use method='kha'")
        takes_all = self.method == "exact"
        drawn = self.method == "kha" or (not takes_all and isinstance(landmarks, str))
        return Problem(
            k,
            m,
            self.kernel,
            self.gamma,
            whole_number(self.degree, "degree", 1),
            float(self.coef0),
            landmarks,
            np.dtype(np.float64) if takes_all else working_dtype(dtype),
            self._seed() if drawn else 0,
            gains=self.gains,
            n_passes=n_passes,
        )

    def _landmarks(
        self, k: int, n: int | None, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[int, str | Array]:
        """Return how many landmarks there are, and how they are chosen, or they themselves."""
        given, count = self.landmarks, self.n_landmarks
        wanted = max(_LANDMARKS, _PER_COMPONENT * k) if count is None else whole_number(count, "n_landmarks", 1)
        if self.method == "exact":
            if count is not None or not isinstance(given, str) or given != "cholesky":
                raise DataError("method='exact' takes all samples as landmarks: leave n_landmarks and landmarks out")
            return wanted if n is None else n, "all"
        if isinstance(given, str):
            if given not in CHOICES:
                raise DataError(f"landmarks is {given!r}: choose one of {', '.join(CHOICES)}, or give an array")
            if n is not None and count is not None and wanted > n:
                raise DataError(f"n_landmarks is {wanted} but there are only {n} samples: ask for at most that many")
            return min(wanted, wanted if n is None else n), given
        if count is not None:
            raise DataError(f"n_landmarks is {count!r} but the landmarks are given: leave it out")
        require_one_array(given, "landmarks")
        try:
            points = np.asarray(given)
        except ValueError as error:
            raise DataError(f"landmarks are no array ({error}): give numbers of (n_landmarks, *{shape})") from error
        if (
            points.dtype.kind not in "buif"
            or points.ndim < 2
            or not points.size
            or (shape and points.shape[1:] != shape)
        ):
            raise DataError(f"landmarks are {points.dtype} of {points.shape}: give numbers of (n_landmarks, *{shape})")
        if not np.isfinite(points).all():
            raise DataError("landmarks hold NaN or infinity: give finite ones")
        points = points.reshape(len(points), -1)
        return len(points), points.astype(np.result_type(working_dtype(dtype), working_dtype(points.dtype)), copy=False)

    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        shape = tuple(source.shape[1:])
        problem = self._problem(source.shape[0], shape, source.dtype)
        plan(problem, Passes(source, memory_budget=self.memory_budget, client=client))
        k, m = problem.k, problem.n_landmarks
        points, kernel = no_values((m, math.prod(shape)), problem.dtype), Kernel(problem.kernel)
        scores, one = no_values((m, k), np.float64), no_values((m,), np.float64)
        maps = KernelMap(kernel, points), scores, no_values((k,), np.float64), one, scores
        return KernelRepresentation(shape, *maps, self.pre_image, kernel, 1.0), True

    # -- what jobs and reports ask

    def check_before(self, n_samples: int) -> None:
        """Refuse parameters that cannot be fitted to so many samples, as far as the parameters alone tell."""
        self._problem(n_samples or None, (), np.dtype(np.float32))

    def announced(self, axes: Sequence[str]) -> str:
        """Say what is fitted."""
        return f"{self.n_components} components of the {self.kernel} kernel by {self.method}"


def _is_above(value: Any, least: float) -> bool:
    return is_real(value) and bool(least < value < math.inf)
