"""TrajectoryPCA: essential dynamics of a molecule, with frames superposed as they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dpca.engine.folds.boundary import named_errors
from dpca.engine.sources.finite import check_finite
from dpca.engine.sources.sampling import first_samples
from dpca.engine.sources.source import Source
from dpca.engine.sources.superposed import PlacedSource, SuperposedSource, placements_of
from dpca.kernels.algebra.types import Array
from dpca.kernels.superposition import Superposition, centered, is_line
from dpca.models.base.attribute_blocks import mean_by_blocks
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.docs import documented
from dpca.models.base.each_sample import OfRows
from dpca.models.base.labelled import Labels
from dpca.models.base.parameters import no_values
from dpca.models.base.passes import Passes
from dpca.models.base.samples import varied_source
from dpca.models.base.store import StoredModel
from dpca.models.linear.weighted import weighted_mean
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.parameters.streaming import TrajectoryParameters
from dpca.partition.whole import Whole
from dpca.representation.base import Representation
from dpca.representation.superposed import Superposed
from dpca.rules.covariance.moments import Moments
from dpca.storage.errors import DataError, one_line
from dpca.storage.readers.arrays.trajectory import MASS
from dpca.storage.run import Run

# The mean has converged if it moves by less than this share of the molecule's radius of gyration.
_SETTLED = 1e-6
# Larger frames, in float64, are superposed by blocks of atoms.
_LARGE_FRAME = 2**26


@documented()
class TrajectoryPCA(TrajectoryParameters, StreamingPCA):
    """Principal component analysis of a molecule's trajectory: essential dynamics (Amadei, Linssen & Berendsen 1993).

    Each frame is first superposed on a reference, by the translation and rotation of least squared distance (Kabsch
    1976). The reference is part of the model: `transform` superposes all frames on the reference of `fit`.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    components_ : array (n_components, 3 n_atoms)
        Orthonormal rows of weighted coordinates: x, y, z of the first atom first.
    explained_variance_, explained_variance_ratio_, singular_values_ : array (n_components,), float64
        In squared units of the coordinates times units of the weights (divisor n - 1).
    mean_ : array (3 n_atoms,), float64
        Mean of the weighted coordinates; see `mean_structure_`.
    reference_ : array (n_atoms, 3), float64
        The reference, with its weighted center at the origin.
    weights_, fit_weights_ : array (n_atoms,), float64
    reference_moved_ : float
        Weighted root mean square distance between the last two references "mean", as a share of the molecule's radius
        of gyration; nan for another reference.
    n_samples_seen_, sample_shape_, total_variance_, captured_bound_, ...
        As in `StreamingPCA`.

    Notes
    -----
    In addition to the cost of `StreamingPCA`, the superposition of a frame takes about 60 operations per atom and 10
    microseconds, in every pass and in `transform`. Memory does not depend on the number of frames. Frames of more than
    64 MiB in float64 are superposed by blocks of atoms, after another pass over them. If a periodic box cuts
    molecules, make them whole first (``MDAnalysis.transformations.unwrap``).

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
    array_axes: ClassVar[dict[str, tuple[str, ...]]] = {
        **StreamingPCA.array_axes,
        "reference": ("atom", "xyz"),
        "weights": ("atom",),
        "fit_weights": ("atom",),
    }
    kept_facts: ClassVar[dict[str, type]] = StreamingPCA.kept_facts | {"reference_moved": float}
    report_title: ClassVar[str] = "Essential dynamics"
    # Its weights are those of atoms.
    weighs_attributes: ClassVar[bool] = False
    weighted_version: ClassVar[int] = 0
    supports_variables: ClassVar[bool] = False

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        super()._fit(self._placed(X, run), run, callbacks)

    def _stream_of(self, X: Any, run: Run, labels: Labels | None) -> Source:
        if self._states is None:
            return self._placed(X, run)
        return SuperposedSource(super()._stream_of(X, run, labels), self._superposition)

    def _placed(self, X: Any, run: Run) -> Source:
        """Find the reference, and return the frames superposed on it."""
        source, masses = varied_source(self, X), _masses(X)
        self._prepare(source.shape[1:], source.name, lambda: first_samples(source, 1)[0], masses)
        for turn in range(self.reference_passes if self._is_mean else 0):
            passes, stage = Passes(self._on_reference(source, run), run), f"reference {turn + 1}"
            if source.weights is not None:
                mean = weighted_mean(passes.source, passes)
            elif _is_large(source):
                mean = mean_by_blocks(passes, stage=stage)
            else:
                mean = passes.over(Whole(source.shape[1:]), Moments(), stage=stage)[0]["mean"]
            if self._move(mean.reshape(-1, 3)) <= _SETTLED:
                break
        return self._on_reference(source, run)

    def _on_reference(self, source: Source, run: Run) -> Source:
        """Return the frames superposed on the reference; by blocks of atoms, after another pass, if they are large."""
        if not _is_large(source):
            return SuperposedSource(source, self._superposition)
        placed = named_errors(placements_of, source.name)(source, self._superposition, run)
        return PlacedSource(source, placed, self.weights_)

    def _batch(self, X: Any, sample_dim: str | Sequence[str] | None, sample_weight: Any) -> Array:
        fresh, masses = self._states is None, _masses(X)
        frames = super()._batch(X, sample_dim, sample_weight)
        if fresh:
            if self._is_mean:
                raise DataError(
                    "reference is 'mean', which requires passes over all frames, so partial_fit does not support it: "
                    "use reference='first', or positions"
                )
            self._prepare(frames.shape[1:], "X", lambda: frames[0], masses)
        return self._superposition.rows_of(frames if fresh else self._of_this_shape(frames))

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        """Plan a fit; see `Estimator.plan_fit`."""
        _check_frames(source.shape[1:], source.name)
        atoms = source.shape[1]
        place = Superposition(*(no_values((atoms, *rest), np.float64) for rest in ((3,), (), ())))
        placed: Source = SuperposedSource(source, place)
        if _is_large(source):
            placed = PlacedSource(source, no_values((source.shape[0], 4, 3), np.float64), place.weights)
        basis, known = super().plan_fit(placed, axes, run)
        return self._superposed(basis, place), known

    def _prepare(self, shape: Sequence[int], name: str, first: Callable[[], Array], masses: Array | None) -> None:
        """Set the weights and the first reference."""
        _check_frames(shape, name)
        self.weights_ = _weights(self.weights, "weights", shape[0], masses, np.ones(shape[0]))
        if not (self.weights_ > 0).all():
            raise DataError("weights holds 0: use positive weights and omit atoms, or use fit_weights")
        self.fit_weights_ = _weights(self.fit_weights, "fit_weights", shape[0], masses, self.weights_)
        if isinstance(self.reference, str):
            positions = first()
        else:
            try:
                positions = np.asarray(self.reference)
            except ValueError as error:  # rows of several lengths
                raise DataError(f"reference is not an array ({one_line(error)}): use positions (n_atoms, 3)") from error
            if positions.shape != tuple(shape) or positions.dtype.kind not in "iuf":
                raise DataError(
                    f"reference is {positions.dtype} of {positions.shape} and frames have {tuple(shape)}: use real "
                    f"positions of the same atoms"
                )
            check_finite(positions[None].astype(np.float64), 0, "reference")
        self.reference_, self.reference_moved_ = centered(positions.astype(np.float64), self.fit_weights_), np.nan
        self._check_reference()

    def _move(self, mean: Array) -> float:
        """Replace the reference by the mean of weighted rows, and return `reference_moved_`."""
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
                f"the {count} atoms of the superposition lie on one line, so the rotation about it is undefined: set "
                f"fit_weights of at least 3 atoms that do not lie on a line"
            )

    @property
    def _is_mean(self) -> bool:
        return isinstance(self.reference, str) and self.reference == "mean"

    def _set_fitted(self, found: dict[str, Any], sample_shape: tuple[int, ...], n: int) -> None:
        super()._set_fitted(found, sample_shape, n)
        for name in ("reference", "weights", "fit_weights"):
            if name in found:  # read from a store
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
        """The reference, the mean and the components, as tasks receive them."""
        return self._superposed(super().basis_, self._superposition)

    def _superposed(self, basis: Any, superposition: Superposition) -> Superposed:
        scales = basis.scales if self.whiten else np.ones(len(basis.components))
        return Superposed(basis.partition, basis.mean, basis.components, scales, superposition)

    def aligned(self, frames: Array) -> Array:
        """Return frames (n, n_atoms, 3) in memory, superposed on the reference; float32, or float64 for float64."""
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
        """Displacements of the atoms for a score of 1 (n_components, n_atoms, 3), in the units of the frames."""
        # The unit of a whitened score is one standard deviation.
        rows = self.components_ * self.basis_.scales[:, None].astype(self.components_.dtype)
        modes: Array = self._superposition.frames(rows.reshape(-1, *self.sample_shape_))
        return modes

    def _each_sample(
        self, X: Any, function: Any, basis: Any, shape: tuple[int, ...], dtype_for: Callable[[DTypeLike], DTypeLike]
    ) -> Any:
        # Encode superposes frames itself, and so do blocks of atoms. A DataArray comes a second time, as an array.
        if not self._on_disk and function is not Representation.encode and not isinstance(function, OfRows):
            function = OfRows(function, self._superposition.rows_of)
        return super()._each_sample(X, function, basis, shape, dtype_for)


def _is_large(source: Source) -> bool:
    return 8 * math.prod(source.shape[1:]) > _LARGE_FRAME


def _masses(X: Any) -> Array | None:
    """Return the masses of the atoms of a source, None if it has none."""
    along = getattr(X, "coordinates", None)
    found = None if along is None else along.arrays.get(MASS)
    return None if found is None else found.values


def _check_frames(shape: Sequence[int], name: str) -> None:
    if len(shape) != 2 or shape[1] != 3:
        raise DataError(f"{name} has samples of {tuple(shape)}: use positions (n_frames, n_atoms, 3)")
    if shape[0] < 3:
        raise DataError(f"{name} has {shape[0]} atoms: the superposition of frames requires at least 3")


def _weights(given: Any, name: str, n_atoms: int, masses: Array | None, default: Array) -> Array:
    if given is None:
        return default
    if isinstance(given, str):
        if masses is None:
            raise DataError(
                f"{name} is 'mass', but these frames have no masses: use an AtomGroup of MDAnalysis, a stack made from "
                f"one, or an array of the masses"
            )
        given = masses
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is not an array of numbers ({one_line(error)}): use one for each atom") from error
    if values.shape != (n_atoms,) or not np.isfinite(values).all() or (values < 0).any() or not values.any():
        raise DataError(
            f"{name} has shape {values.shape} and least value {values.min(initial=np.inf):g} for {n_atoms} atoms: use "
            f"one finite number of at least 0 for each, not all of them 0"
        )
    return values
