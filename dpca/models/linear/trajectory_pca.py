"""TrajectoryPCA: essential dynamics of a molecule, whose frames are superposed where they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source, check_finite
from dpca.engine.sources.superposed import SuperposedSource
from dpca.kernels.algebra.types import Array
from dpca.kernels.superposition import Superposition, centered, is_line
from dpca.models.base.docs import documented
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.base.samples import varied_source
from dpca.models.base.store import StoredModel
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.superposed import Superposed
from dpca.rules.covariance.moments import Moments
from dpca.storage.errors import DataError, one_line
from dpca.storage.given_numbers import whole_number
from dpca.storage.readers.arrays.trajectory import MASS

# A mean that moves by less than this share of the molecule's radius is found.
_SETTLED = 1e-6


@documented()
@dataclass(eq=False, repr=False, kw_only=True)
class TrajectoryPCA(StreamingPCA):
    """Principal component analysis of a molecule's trajectory: essential dynamics (Amadei, Linssen & Berendsen 1993).

    Each frame is shifted and turned onto a reference before anything else, by the rotation of least squared distance
    (Kabsch 1976). The reference belongs to the model: `transform` superposes frames as `fit` did, whatever they are.

    Parameters
    ----------
    n_components : int or float
        As in `StreamingPCA`.
    reference : {"mean", "first"} or array (n_atoms, 3)
        What frames are superposed on. "mean": the mean of the superposed frames, beginning with the first frame, in
        passes until it stands still. "first": the first frame, as MDAnalysis does it; or positions of one's own. Is
        centered.
    weights : None, "mass" or array (n_atoms,)
        Of each atom, positive: its coordinates are multiplied by the root. "mass" gives the mass-weighted covariance of
        quasi-harmonic analysis, and needs masses: those of an ``AtomGroup``, or of a stack that was made of one.
    fit_weights : None, "mass" or array (n_atoms,)
        Of each atom's squared distance in superposing, at least 0: atoms of weight 0 do not count there, but are
        analyzed. Default ``weights``.
    reference_passes : int
        Most passes to find the reference "mean".
    method, batch_size, n_passes, center, shuffle, execution, n_streams, round_size, random_state, memory_budget
        As in `StreamingPCA`.
    oversampling, forgetting, whiten, keep_state
        As in `StreamingPCA`.

    Attributes
    ----------
    components_ : array (n_components, 3 n_atoms)
        Orthonormal rows of weighted coordinates: x, y, z of the first atom first.
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        In squared units of the coordinates times those of the weights (divisor n - 1).
    mean_ : array (3 n_atoms,), float64
        Of weighted coordinates; see `mean_structure_`.
    reference_ : array (n_atoms, 3), float64
        With its weighted center at the origin.
    weights_, fit_weights_ : array (n_atoms,), float64
    reference_moved_ : float
        Root of the weighted mean squared distance by which the last pass moved the reference "mean", as a share of the
        molecule's radius of gyration; nan for another reference.
    n_samples_seen_, sample_shape_, total_variance_, captured_bound_, ...
        As in `StreamingPCA`.

    Notes
    -----
    Beside what `StreamingPCA` takes, a frame costs about 60 operations an atom and 10 microseconds to superpose, in
    every pass and in `transform`. Memory does not depend on the number of frames. Molecules that a periodic box cuts
    are made whole before (``MDAnalysis.transformations.unwrap``).

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import TrajectoryPCA
    >>> frames = np.random.default_rng(0).normal(size=(200, 30, 3)) + np.arange(90).reshape(30, 3)
    >>> model = TrajectoryPCA(4, random_state=0).fit(frames)
    >>> model.transform(frames - 5.0).shape
    (200, 4)
    """

    store_kind: ClassVar[str] = "trajectory-pca"
    kept_arrays: ClassVar[dict[str, tuple[str, ...]]] = {
        **StreamingPCA.kept_arrays,
        "reference": ("atom", "xyz"),
        "weights": ("atom",),
        "fit_weights": ("atom",),
    }
    # The learned arrays take the place of what they were made from.
    parameters_not_kept: ClassVar[tuple[str, ...]] = (
        *StreamingPCA.parameters_not_kept,
        "reference",
        "weights",
        "fit_weights",
    )
    kept_facts: ClassVar[dict[str, type]] = StreamingPCA.kept_facts | {"reference_moved": float}
    report_title: ClassVar[str] = "Essential dynamics"

    reference: Any = "mean"
    weights: Any = None
    fit_weights: Any = None
    reference_passes: int = 20

    def _fit(self, X: Any, **running: Any) -> None:
        super()._fit(self._placed(X, **running), **running)

    def _stream_of(self, X: Any, client: Any | None) -> Source:
        if self._states is None:
            return self._placed(X, client=client)
        return SuperposedSource(super()._stream_of(X, client), self._superposition)

    def _placed(self, X: Any, **running: Any) -> Source:
        """Return frames on the reference, once that is found."""
        most = whole_number(self.reference_passes, "reference_passes", 1)
        source, masses = varied_source(self, X), _masses(X)
        self._prepare(source.shape[1:], source.name, lambda: first_samples(source, 1)[0], masses)
        for turn in range(most if self._is_mean else 0):
            passes = Passes(SuperposedSource(source, self._superposition), memory_budget=self.memory_budget, **running)
            (found,) = passes.over(Whole(source.shape[1:]), Moments(), stage=f"reference {turn + 1}")
            if self._move(found["mean"].reshape(-1, 3)) <= _SETTLED:
                break
        return SuperposedSource(source, self._superposition)

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None) -> Array:
        fresh, masses, frames = self._states is None, _masses(X), super()._batch(X, sample_dim)
        if fresh:
            if self._is_mean:
                raise DataError(
                    "reference is 'mean', which takes passes over all frames, and partial_fit sees some at a time: "
                    "give reference='first', or positions"
                )
            self._prepare(frames.shape[1:], "X", lambda: frames[0], masses)
        return self._superposition.rows_of(frames if fresh else self._of_this_shape(frames))

    def plan_fit(self, source: Source, axes: Sequence[str], client: Any | None) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        _check_frames(source.shape[1:], source.name)
        atoms = source.shape[1]
        place = Superposition(*(no_values((atoms, *rest), np.float64) for rest in ((3,), (), ())))
        basis, known = super().plan_fit(SuperposedSource(source, place), axes, client)
        return self._superposed(basis, place), known

    def _prepare(self, shape: Sequence[int], name: str, first: Callable[[], Array], masses: Array | None) -> None:
        """Set the weights, and the reference that frames are superposed on first."""
        _check_frames(shape, name)
        self.weights_ = _weights(self.weights, "weights", shape[0], masses, np.ones(shape[0]))
        if not (self.weights_ > 0).all():
            raise DataError("weights holds 0, with which an atom has no coordinates: leave it out, or use fit_weights")
        self.fit_weights_ = _weights(self.fit_weights, "fit_weights", shape[0], masses, self.weights_)
        if isinstance(self.reference, str):
            if self.reference not in ("mean", "first"):
                raise DataError(f"reference is {self.reference!r}: give 'mean', 'first' or positions (n_atoms, 3)")
            positions = first()
        else:
            try:
                positions = np.asarray(self.reference)
            except ValueError as error:  # rows of several lengths
                raise DataError(f"reference is no array ({one_line(error)}): give positions (n_atoms, 3)") from error
            if positions.shape != tuple(shape) or positions.dtype.kind not in "iuf":
                raise DataError(
                    f"reference is {positions.dtype} of {positions.shape} and frames are {tuple(shape)}: give "
                    f"positions of the same atoms"
                )
            check_finite(positions[None].astype(np.float64), 0, "reference")
        self.reference_, self.reference_moved_ = centered(positions.astype(np.float64), self.fit_weights_), np.nan
        self._check_reference()

    def _move(self, mean: Array) -> float:
        """Take the mean of rows for the reference; return by how much that moves it."""
        before, weights = self.reference_, self.fit_weights_[:, None]
        self.reference_ = centered(mean / np.sqrt(self.weights_)[:, None], self.fit_weights_)
        self._check_reference()
        apart = (weights * (self.reference_ - before) ** 2).sum() / (weights * self.reference_**2).sum()
        self.reference_moved_ = float(np.sqrt(apart))
        return self.reference_moved_

    def _check_reference(self) -> None:
        if is_line(self.reference_, self.fit_weights_):
            count = int((self.fit_weights_ > 0).sum())
            raise DataError(
                f"the {count} atoms that frames are superposed by lie on one line, around which any turn is as good: "
                f"give at least 3 that do not"
            )

    @property
    def _is_mean(self) -> bool:
        return isinstance(self.reference, str) and self.reference == "mean"

    def _learned(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        super()._learned(found, sample_shape, n)
        for name in ("reference", "weights", "fit_weights"):
            if name in found:  # of a store
                setattr(self, f"{name}_", found[name])
        self.reference_moved_ = vars(self).get("reference_moved_", found.get("reference_moved", np.nan))

    @classmethod
    def _stored_lengths(cls, stored: StoredModel) -> dict[str, int]:
        return super()._stored_lengths(stored) | {"atom": stored.sample_shape[0], "xyz": 3}

    # -- using

    @property
    def _superposition(self) -> Superposition:
        return Superposition(self.reference_, self.fit_weights_, self.weights_)

    @property
    def basis_(self) -> Superposed:
        """The reference, the mean and the components: what tasks are sent."""
        return self._superposed(super().basis_, self._superposition)

    def _superposed(self, basis: Any, superposition: Superposition) -> Superposed:
        scales = basis.scales if self.whiten else np.ones(len(basis.components))
        return Superposed(basis.partition, basis.mean, basis.components, scales, superposition)

    def aligned(self, frames: Array) -> Array:
        """Return frames (n, n_atoms, 3), held in memory, as they lie on the reference; float32, float64 for float64."""
        check_is_fitted(self)
        samples = self._of_this_shape(self._in_memory(frames))
        return self._superposition.frames(self._superposition.rows_of(samples))

    @property
    def mean_structure_(self) -> Array:
        """Mean of the superposed frames (n_atoms, 3), float64, in the units of the frames."""
        structure: Array = self.mean_.reshape(-1, 3) / np.sqrt(self.weights_)[:, None]
        return structure

    @property
    def modes_(self) -> Array:
        """How atoms move for a score of 1 (n_components, n_atoms, 3), in the units of the frames."""
        # A score that was whitened counts standard deviations.
        rows = self.components_ * self.basis_.scales[:, None].astype(self.components_.dtype)
        modes: Array = self._superposition.frames(rows.reshape(-1, *self.sample_shape_))
        return modes

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        if function is not Representation.encode:  # which superposes
            function = _OfRows(function, self._superposition)
        return super()._each_sample(X, function, basis, shape, dtype_for)


@dataclass(frozen=True)
class _OfRows:
    """A function of rows, applied to frames."""

    function: Callable[..., Array]
    superposition: Superposition

    def __call__(self, basis: Any, frames: Array, name: str = "a chunk") -> Array:
        check_finite(frames, 0, name)
        return self.function(basis, self.superposition.rows_of(frames), name)


def _masses(X: Any) -> Array | None:
    """Return the masses that stand along the atoms of a source, None where there are none."""
    along = getattr(X, "coordinates", None)
    found = None if along is None else along.arrays.get(MASS)
    return None if found is None else found.values


def _check_frames(shape: Sequence[int], name: str) -> None:
    if len(shape) != 2 or shape[1] != 3:
        raise DataError(f"{name} has samples of {tuple(shape)}: give positions (n_frames, n_atoms, 3)")
    if shape[0] < 3:
        raise DataError(f"{name} has {shape[0]} atoms: at least 3 are needed to turn a frame onto another")


def _weights(given: Any, name: str, n_atoms: int, masses: Array | None, default: Array) -> Array:
    if given is None:
        return default
    if isinstance(given, str):
        if given != MASS:
            raise DataError(f"{name} is {given!r}: give 'mass', an array (n_atoms,), or None")
        if masses is None:
            raise DataError(
                f"{name} is 'mass' but the masses of these frames are not known: give an AtomGroup of MDAnalysis, a "
                f"stack that was made of one, or the masses themselves"
            )
        given = masses
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is no array of numbers ({one_line(error)}): give one of each atom") from error
    if values.shape != (n_atoms,) or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise DataError(
            f"{name} is {values.shape}, from {values.min(initial=np.inf):g} on, for {n_atoms} atoms: give a number of "
            f"each, at least 0 and not all of them"
        )
    return values
