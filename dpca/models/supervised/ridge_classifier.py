"""A linear classifier in one pass over samples that need not fit in memory."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.fold import fold, plan_for
from dpca.engine.folds.plan import FoldPlan, Outline, PlanError
from dpca.engine.sources.coded import CodedSource
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.held_out import repeated
from dpca.kernels.algebra.types import Array
from dpca.models.base.callbacks import Callback, FitCallbacks, finish_all, may_end_early
from dpca.models.base.docs import documented
from dpca.models.base.each_sample import EachSample
from dpca.models.base.labelled import samples_to_fit
from dpca.models.base.parameters import check_parameters
from dpca.models.base.passes import run_of_fit
from dpca.models.base.samples import counts_and_fractions, fitted_source
from dpca.models.base.storable import Storable
from dpca.models.base.store import StoreContents, StoredModel, stored_parameters
from dpca.models.scores import Scores
from dpca.parameters.supervised import RidgeParameters
from dpca.partition.whole import Whole
from dpca.rules.base.codes import MOST_CODES
from dpca.rules.base.state import State
from dpca.rules.covariance.ridge import RidgeMoments
from dpca.storage.errors import DataError, one_line
from dpca.storage.run import Run

# Samples of one block of decisions.
_ROWS = 1024
# Labels of one block, at least, so that temporary arrays are small for any number of labels.
_LABELS_AT_ONCE = 2**18
# Kinds of labels in stores: truth values, integers, floats, strings.
_LABELS = "biufUO"


@documented()
class StreamingRidgeClassifier(RidgeParameters, EachSample, Storable, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear classifier by ridge regression in one pass, with a penalty chosen by exact cross-validation.

    Equals scikit-learn's `RidgeClassifier` on standardized attributes: least squares on targets of 1 and -1, with an
    intercept and a penalty on the squares of the coefficients. The predicted class is that of the largest decision. The
    moments of attributes and classes are added in any order, on any number of workers.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : array (n_classes,)
        Ascending.
    coef_ : array (n_targets, n_features), float64
        For attributes that are not standardized. One row for each class; with two classes, one row for the second.
    intercept_ : array (n_targets,), float64
    alpha_ : float
        The selected penalty.
    cv_errors_ : array (n_alphas,), float64
        Mean squared error of a target for each penalty; 0 for a single penalty.
    folds_ : array (n_samples,), int32
        The fold that each sample was held out in; not stored. Only those of positive weight, as often as they count.
    sample_shape_ : tuple of int
    n_samples_seen_, n_features_in_ : int
    fit_report_ : FoldReport
        Plan, seconds, peak memory.

    Notes
    -----
    Costs n d^2 operations for n samples with d attributes, and d^3 / 3 for each penalty and fold; memory 8 d^2 bytes
    (``cv`` + 3) times, and the same again for each further segment in parallel, and 4 bytes per sample for its class
    and fold. A single penalty requires no folds.
    For 8-bit integers the moments are exact, so the result does not depend on chunks, order or workers. For other types
    it is equal up to rounding error. Their products are computed in float64, at half the speed of float32, because a
    small penalty amplifies rounding errors.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import StreamingRidgeClassifier
    >>> rng = np.random.default_rng(0)
    >>> y = rng.choice(["cat", "dog"], 200)
    >>> images = rng.integers(0, 200, (200, 8, 8)) + 50 * (y == "dog")[:, None, None]
    >>> model = StreamingRidgeClassifier().fit(images, y)
    >>> model.predict(images[:2]) == y[:2]
    array([ True,  True])
    """

    store_kind: ClassVar[str] = "ridge-classifier"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_samples_seen_")

    # -- learning

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        sample_dim: str | Sequence[str] | None = None,
        key: str | None = None,
        run: Run = Run(),
        callback: Callback | None = None,
        max_seconds: float | None = None,
        max_samples: int | None = None,
    ) -> Self:
        """Find the coefficients.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), Stack, Scores, path or Source
            As in `CellPCA.fit`, or the result of `dpca.open_scores`.
        y : array_like (n_samples,)
            The class of each sample: strings, integers or truth values, in the order of the samples.
        sample_weight : array_like (n_samples,), optional
            How often each sample counts, as in `CellPCA.fit`: 2 is a sample twice, whose copies may be in different
            folds, and 0 leaves it out. With weights that are not whole numbers, all sums are weighted, also those of
            means, standard deviations and errors, as in scikit-learn's `RidgeClassifier`.
        sample_dim, key, run
            As in `CellPCA.fit`.
        callback, max_seconds, max_samples
            As in `CellPCA.fit`. Each call of the callback solves for all penalties and folds. A class without samples
            so far is never predicted.

        Raises
        ------
        DataError
            If a value is not finite, the labels are not classes, their number differs from that of the samples, or
            there is a single class; or for invalid weights.
        PlanError
            If the moments do not fit into the memory budget; the message states the largest number of attributes.
        """
        check_parameters(self)
        alphas, cv = self._penalties(), int(self.cv)
        n_folds = cv if len(alphas) > 1 else 1
        X, labels = samples_to_fit(_plain(X), sample_dim, key)
        _, source = fitted_source(self, X, sample_weight)
        classes, y = self._classes(y, source.shape[0])
        fractions = None
        if sample_weight is not None:
            counts, fractions = counts_and_fractions(sample_weight, len(y), any_weights=True)
            source = repeated(source, counts)
            classes, y = self._classes(np.repeat(y, counts), source.shape[0])
        n = source.shape[0]
        if n_folds > n:
            raise DataError(f"cv is {cv}, but there are only {n} samples: use fewer folds, or one alpha")
        if n_folds * len(classes) > MOST_CODES:
            raise DataError(
                f"y has {len(classes):,} classes, which in {n_folds} folds exceed the limit of {MOST_CODES:,}: use "
                f"classes as labels, not measured values, or fewer folds"
            )
        options: dict[str, Any] = {"standardize": bool(self.standardize), "weighted": fractions is not None}
        rule = RidgeMoments(len(classes), alphas, n_folds=n_folds, **options)
        coded = CodedSource(source, _dealt(y, classes, n_folds), fractions)
        fit_run = run_of_fit(run, self.memory_budget)
        plan = self._planned(rule, coded, fit_run)
        callbacks = FitCallbacks.requested(self, callback, max_seconds, max_samples)

        def set_fitted(model: Self, found: dict[str, Array], n: int) -> None:
            model.classes_, model._codes = classes, coded.codes
            model.coef_, model.intercept_ = found["coefficients"], found["intercept"]
            model.alpha_, model.cv_errors_ = float(found["alpha"]), found["errors"]
            model.sample_shape_, model.n_samples_seen_ = tuple(source.shape[1:]), n
            model._labels, model._key = labels, key

        def so_far(states: list[State]) -> dict[str, Array]:
            return finish_all(rule, states)[0]

        in_fold = None if callbacks is None else callbacks.of_fold(so_far, set_fitted, n)
        with may_end_early(self, callbacks):
            (found,), self.fit_report_ = fold(
                rule, coded, Whole(coded.shape[1:]), run=fit_run, plan=plan, callback=in_fold
            )
            set_fitted(self, found, n)
        return self

    def _penalties(self) -> tuple[float, ...]:
        return tuple(map(float, np.ravel(self.alphas)))

    @property
    def folds_(self) -> Array:
        """The fold that each sample was held out in (n_samples,), int32."""
        check_is_fitted(self)
        if not hasattr(self, "_codes"):
            raise AttributeError("folds_ is not stored: fit the classifier")
        folds: Array = self._codes // np.int32(len(self.classes_))
        return folds

    def _classes(self, y: Any, n: int) -> tuple[Array, Array]:
        """Return the classes, and the labels (n,) as an array."""
        if y is None:
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: pass the class of each "
                f"sample"
            )
        try:
            if np.ma.is_masked(y):
                raise ValueError("some labels are masked")
            labels = column_or_1d(np.asarray(y), warn=True)
            labels = labels.astype(object) if labels.dtype.kind == "T" else labels  # strings of any length
            found = []
            for some in np.array_split(labels, max(1, len(labels) // _LABELS_AT_ONCE)):
                if labels.dtype.kind == "f" and not np.isfinite(some).all():
                    raise ValueError("Input y contains NaN or infinity")
                check_classification_targets(some)
                found.append(np.unique(some))
            classes = np.unique(np.concatenate(found))
        except (TypeError, ValueError) as error:
            raise DataError(
                f"y does not hold classes ({one_line(error)}): use strings, integers or truth values"
            ) from error
        if len(labels) != n:
            raise DataError(f"y holds {len(labels)} labels, but there are {n} samples: use one label for each")
        if len(classes) < 2:
            raise DataError(
                f"y holds 1 class, {classes.tolist()[0]!r}: a classifier requires samples of at least 2 classes"
            )
        if classes.dtype.kind not in _LABELS or (classes.dtype == object and not all(type(c) is str for c in classes)):
            raise DataError(f"y holds labels of type {classes.dtype}: use strings, integers or truth values")
        return classes, labels

    def _planned(self, rule: RidgeMoments, coded: CodedSource, run: Run) -> FoldPlan:
        """Plan the fold; an error about memory states the largest number of attributes that fits."""

        def planned(source: CodedSource) -> FoldPlan:
            return plan_for(rule, source, Whole(source.shape[1:]), run=run)

        def refused(d: int) -> bool:
            name, (n, *_), rows = coded.name, coded.shape, coded.chunks[0]
            try:
                outline = Outline(name, (n, d), coded.source.dtype, (rows, d))
                planned(CodedSource(outline, coded.codes, coded.fractions))
            except PlanError:
                return True
            return False

        try:
            return planned(coded)
        except PlanError as error:
            d = coded.n_attributes
            fits = bisect.bisect_left(range(1, d), True, key=refused)
            limit = (run.here() if coded.in_process else run).task_bytes()
            otherwise = f", or use at most {fits:,} attributes, for example fewer components" if fits else ""
            otherwise += ", or use one alpha, which requires no folds" if rule.n_folds > 1 else ""
            raise PlanError(
                f"the moments of {d:,} attributes in {rule.n_folds} fold(s) do not fit into {limit / 1e6:,.0f} MB, the "
                f"memory budget of a task: increase memory_budget{otherwise}"
            ) from error

    # -- using

    def decision_function(self, X: Any) -> Any:
        """Return decisions (n_samples, n_classes); with two classes (n_samples,), above 0 for the second.

        For samples that are lazy or in a store, the result is a Dask array; for a ``DataArray``, a ``DataArray``.

        Raises
        ------
        DataError
            If the samples have another shape than those of the fit, or a value is not finite.
        """
        check_is_fitted(self)
        shape = () if len(self.coef_) == 1 else (len(self.coef_),)
        return self._each_sample(_plain(X), _decisions, self._decider(), shape, lambda dtype: np.float64)

    def predict(self, X: Any) -> Any:
        """Return the class (n_samples,) of each sample; the type of array is that of `decision_function`."""
        check_is_fitted(self)
        function = partial(_predictions, classes=self.classes_)
        return self._each_sample(_plain(X), function, self._decider(), (), lambda dtype: self.classes_.dtype)

    def _decider(self) -> tuple[Array, Array]:
        return self.coef_, self.intercept_

    # -- on disk

    def _to_store(self) -> StoreContents:
        return StoreContents(
            arrays={
                "coefficients": (self.coef_, ("target", "feature")),
                "intercept": (self.intercept_, ("target",)),
                "cv_errors": (self.cv_errors_, ("alpha",)),
            },
            facts={
                "sample_shape": list(self.sample_shape_),
                "n_components": len(self.coef_),
                "n_samples_seen": self.n_samples_seen_,
                "classes": self.classes_.tolist(),
                "classes_type": "object" if self.classes_.dtype == object else self.classes_.dtype.str,
                "alpha": self.alpha_,
                "parameters": stored_parameters(self),
            },
            version=1,
        )

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        facts, d = stored.facts, math.prod(stored.sample_shape)
        kind = np.dtype(facts["classes_type"])
        if kind.kind not in _LABELS:
            raise ValueError(f"its labels are of type {kind}")
        model = cls(**stored.parameters(cls))
        n, m = stored.n_components, len(model._penalties())
        found = stored.arrays({"coefficients": (n, d), "intercept": (n,), "cv_errors": (m,)})
        model.classes_ = np.array(facts["classes"], kind)
        if len(model.classes_) != (2 if n == 1 else n):
            raise ValueError(f"it has {len(model.classes_)} classes and {n} targets")
        model.coef_, model.intercept_ = found["coefficients"], found["intercept"]
        model.cv_errors_, model.alpha_ = found["cv_errors"], float(facts["alpha"])
        model.sample_shape_, model.n_samples_seen_ = stored.sample_shape, stored.n_samples
        model.n_features_in_ = d
        return model


def _plain(X: Any) -> Any:
    return X.scores if isinstance(X, Scores) else X


def _dealt(labels: Array, classes: Array, n_folds: int) -> Array:
    """Return the code (n,), int32, of each sample: its fold times the number of classes, plus its class.

    Samples sorted by class are dealt to the folds in turn, so that the sizes of folds differ by one at most, of each
    class and of all.
    """
    codes = np.empty(len(labels), np.int32)
    runs = [slice(start, start + _LABELS_AT_ONCE) for start in range(0, len(labels), _LABELS_AT_ONCE)]
    counts = np.zeros(len(classes), np.int64)
    for run in runs:
        codes[run] = np.searchsorted(classes, labels[run])
        counts += np.bincount(codes[run], minlength=len(classes))
    place = np.cumsum(counts) - counts  # of the next sample of each class among all that are sorted
    for run in runs:
        own = codes[run]
        order = np.argsort(own, kind="stable")
        counts = np.bincount(own, minlength=len(classes))
        # The j-th place of a class in this run follows those of the runs before.
        ranks = np.arange(len(own)) + np.repeat(place - np.cumsum(counts) + counts, counts)
        own[order] += (ranks % n_folds * len(classes)).astype(np.int32)
        place += counts
    return codes


def _decisions(decider: tuple[Array, Array], samples: Array, name: str = "a chunk") -> Array:
    coefficients, intercept = decider
    check_finite(samples, 0, name)
    rows = samples.reshape(len(samples), -1)
    found = np.empty((len(rows), len(coefficients)))
    for start in range(0, len(rows), _ROWS):
        # In float64, because attributes may be far from 0.
        np.matmul(rows[start : start + _ROWS].astype(np.float64), coefficients.T, out=found[start : start + _ROWS])
    found += intercept
    return found[:, 0] if len(coefficients) == 1 else found


def _predictions(decider: tuple[Array, Array], samples: Array, name: str = "a chunk", *, classes: Array) -> Array:
    found = _decisions(decider, samples, name)
    which = (found > 0).astype(np.intp) if found.ndim == 1 else found.argmax(axis=1)
    predicted: Array = classes[which]
    return predicted
