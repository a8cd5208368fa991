"""CellPCA: one principal component analysis for each cell of a stack of images or volumes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpca.engine.checkpoint import Checkpoints
from dpca.engine.fold import FoldReport, fold
from dpca.engine.source import Source, as_dense, as_source, check_finite, check_numeric
from dpca.models.cell_basis import CellBasis
from dpca.models.lazy import as_lazy, default_client, is_lazy, map_samples, scores_of
from dpca.partition.cells import CellGrid
from dpca.rules.covariance import CovariancePCA
from dpca.rules.state import State, working_dtype
from storage.errors import DataError
from storage.layout import CHANNEL, axes_for
from storage.progress import Progress, no_progress
from storage.stack import Stack, open_stack

Array = NDArray[Any]


class CellPCA(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Principal component analysis of every cell of an image or volume stack (T 4.3; T 6.4.3 for volumes).

    A sample is cut into cells, blocks of neighboring pixels with all their channels; each cell of the grid gets its own
    mean and components from all samples, in one pass: its covariance is accumulated chunk by chunk, then decomposed.
    Edge cells have the true remaining size. Values are analyzed in the units of the input; integers are never copied
    whole to floating point.

    Parameters
    ----------
    n_components : int or None
        Components of each cell; None keeps all. An edge cell with fewer attributes keeps all of its own.
    cell_shape : int or tuple of int
        Cell length along each spatial axis, one integer for all of them. A tuple also says which axes are spatial: its
        length counts them, axes after those are channels. With an integer, a last axis of length 4 or less behind two
        or more others is taken for channels.
    memory_budget : int, optional
        Bytes that one task may take beyond what its process holds; default from the workers' limits or the machine.

    Attributes
    ----------
    components_ : array (n_components, *sample_shape), float32 (float64 for float64 and integers of over 16 bits)
        Component j of every cell at the cell's place: ``components_[j]`` looks like a sample. Rows of a cell are
        orthonormal, ordered by variance; the entry of largest magnitude is positive.
    mean_ : array (*sample_shape), float64
    explained_variance_ : array (*grid_shape, n_components), float64
        Variance of the scores, in squared units of the input (divisor n - 1).
    explained_variance_ratio_ : array (*grid_shape, n_components), float64
        The same divided by the cell's total variance; 0 where a cell is constant.
    total_variance_ : array (*grid_shape), float64
        Certificate: (total - sum explained) (n - 1) / n is exactly the squared error of a cell, summed over its
        attributes and averaged over the samples of the fit.
    singular_values_ : array (*grid_shape, n_components), float64
    n_components_, n_samples_seen_, n_features_in_ : int
    sample_shape_ : tuple of int
    grid_ : CellGrid
    fit_report_ : FoldReport
        Plan, seconds, peak memory.

    Notes
    -----
    Runs on the current ``distributed.Client`` if there is one and the input is on disk or a Dask array, else on threads
    of this process. Costs O(n d) reads and O(n d c) arithmetic for cells of c attributes, and memory for the
    covariances of the cells that a task holds, which the planner bounds before anything runs.

    For 8-bit integers the covariances are exact, so the result does not depend on chunks, order or workers at all.

    Examples
    --------
    >>> import numpy as np
    >>> from dpca import CellPCA
    >>> images = np.random.default_rng(0).integers(0, 256, (100, 20, 30, 3), dtype=np.uint8)
    >>> model = CellPCA(5, cell_shape=10).fit(images)
    >>> model.transform(images).shape
    (100, 2, 3, 5)
    """

    def __init__(
        self, n_components: int | None, *, cell_shape: int | tuple[int, ...], memory_budget: int | None = None
    ) -> None:
        self.n_components = n_components
        self.cell_shape = cell_shape
        self.memory_budget = memory_budget

    # -- learning

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        client: Any | None = None,
        checkpoints: Checkpoints | None = None,
        progress: Progress = no_progress,
    ) -> Self:
        """Compute the components of every cell in one pass.

        Parameters
        ----------
        X : array (n_samples, *sample_shape), numpy, Dask or Zarr; storage.Stack; or path of a stack store or Zarr array
        y : ignored
        client : distributed.Client, optional
            Default: the current one, if any.
        checkpoints : Checkpoints, optional
            Folder of a fit that was stopped, to go on from.
        progress : Progress, optional
            Told the bytes read.

        Raises
        ------
        DataError
            For values that are not finite, fewer than 2 samples, or more components than attributes or samples.
        PlanError
            When one cell at a time does not fit the memory budget.
        """
        stack = open_stack(X) if isinstance(X, str | os.PathLike) else X
        source = as_source(stack)
        grid = self._grid(source, stack.axes[1:] if isinstance(stack, Stack) else None)
        rule = CovariancePCA(self._checked_components(source.shape[0], grid))
        results, report = fold(
            rule,
            source,
            grid,
            client=client or default_client(),
            budget=self.memory_budget,
            checkpoints=checkpoints,
            progress=progress,
        )
        self.fit_report_: FoldReport = report
        self._states: list[State] | None = None
        self._learn(grid, results, source.shape[0], source.dtype)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Take in further samples, held in memory, and decompose again.

        Parameters
        ----------
        X : array (n_samples, *sample_shape)
            The first call fixes the sample shape and dtype.

        Notes
        -----
        Keeps all covariances in memory and solves every eigenproblem at each call: for many batches, or when they
        lie in a store, `fit` is far cheaper. The attributes are there once two samples were seen. What `fit` learned
        or `load` read is forgotten: it keeps no covariances.
        """
        X = np.ascontiguousarray(as_dense(X))
        check_numeric(X.shape, X.dtype, "X")
        if X.dtype.kind == "f":
            check_finite(X, 0, "X")
        grid = self._grid(as_source(X))
        rule = CovariancePCA(self._checked_components(None, grid))
        if getattr(self, "_states", None) is None:
            self._states = [rule.init(grid.n_features(i), X.dtype) for i in range(grid.n_partitions)]
            self._stream: tuple[CellGrid, np.dtype[Any]] = (grid, X.dtype)
        if (grid, X.dtype) != self._stream:
            raise DataError(
                f"this batch has samples of {X.shape[1:]} {X.dtype} but the first one had "
                f"{self._stream[0].sample_shape} {self._stream[1]}: all batches must agree"
            )
        states = cast("list[State]", self._states)
        origin = (0,) * (X.ndim - 1)
        for i in range(grid.n_partitions):
            cell = grid.take(X, i, origin, np.empty((len(X), grid.n_features(i)), X.dtype))
            states[i] = rule.update(states[i], cell)
        n = states[0].counts["n_samples"]
        if n >= 2:
            copies = (State({k: v.copy() for k, v in s.arrays.items()}, dict(s.counts)) for s in states)
            self._learn(grid, [rule.finish(state) for state in copies], n, X.dtype)
        return self

    def _learn(self, grid: CellGrid, results: list[dict[str, Array]], n: int, dtype: np.dtype[Any]) -> None:
        k = self.n_components or grid.max_features
        out = working_dtype(dtype)
        components = np.zeros((k, *grid.sample_shape), out)
        mean = np.zeros((1, *grid.sample_shape))
        variance = np.zeros((grid.n_partitions, k))
        origin = (0,) * len(grid.sample_shape)
        total = np.array([result["total_variance"] for result in results])
        for i in range(len(results)):
            # Forgotten one after the other: all components are in memory once, not twice.
            result, results[i] = results[i], {}
            found = len(result["components"])
            grid.put(result["components"].astype(out, copy=False), i, origin, components[:found])
            grid.put(result["mean"][None], i, origin, mean)
            variance[i, :found] = result["explained_variance"]
        self.restore(
            grid, components, mean[0], variance.reshape(*grid.grid_shape, k), total.reshape(grid.grid_shape), n
        )

    def restore(
        self,
        grid: CellGrid,
        components: Array,
        mean: Array,
        explained_variance: Array,
        total_variance: Array,
        n_samples: int,
    ) -> None:
        """Set the learned attributes from what a store holds or a fit found."""
        self.grid_ = grid
        self.components_ = components
        self.mean_ = mean
        self.explained_variance_ = explained_variance
        self.total_variance_ = total_variance
        share = np.zeros_like(explained_variance)
        np.divide(explained_variance, total_variance[..., None], out=share, where=total_variance[..., None] > 0)
        self.explained_variance_ratio_ = share
        self.singular_values_ = np.sqrt(explained_variance * (n_samples - 1))
        self.n_samples_seen_ = n_samples
        self.n_components_ = len(components)
        self.sample_shape_ = grid.sample_shape
        self.n_features_in_ = math.prod(grid.sample_shape)
        self._basis = CellBasis(grid, mean, components)

    def _grid(self, source: Source, axes: Sequence[str] | None = None) -> CellGrid:
        sample_shape = tuple(source.shape[1:])
        try:
            return CellGrid(sample_shape, spatial_cell(self.cell_shape, axes or axes_for(sample_shape)))
        except ValueError as error:
            raise DataError(str(error)) from error

    def _checked_components(self, n: int | None, grid: CellGrid) -> int | None:
        k = self.n_components
        if n is not None and n < 2:
            raise DataError(f"{n} sample has no variance: a fit needs at least 2 samples")
        if k is None:
            return None
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise DataError(f"n_components is {k!r}: give a positive integer, or None to keep all")
        if k > grid.max_features:
            raise DataError(
                f"n_components is {k} but a cell of {grid.cell_shape} has only {grid.max_features} attributes: "
                f"ask for at most that many, or choose larger cells"
            )
        if n is not None and k > n:
            raise DataError(f"n_components is {k} but there are only {n} samples: ask for at most that many")
        return int(k)

    # -- using

    @property
    def basis_(self) -> CellBasis:
        """The mean and the components with their grid: what tasks are sent."""
        check_is_fitted(self, "components_")
        return self._basis

    def transform(self, X: Any) -> Any:
        """Return the scores (n_samples, *grid_shape, n_components).

        A numpy array gives a numpy array. A Dask array, a Zarr array, a stack or a path gives a Dask array that
        computes chunk by chunk.

        Raises
        ------
        DataError
            For samples of another shape than those of the fit, or, once they are computed, values that are not finite.
        """
        basis = self.basis_
        if not is_lazy(X):
            samples = as_dense(X)
            self._check_samples(samples.shape)
            return scores_of(basis, samples, "X")
        lazy = as_lazy(X)
        self._check_samples(lazy.shape)
        shape = (*basis.grid.grid_shape, basis.n_components)
        return map_samples(
            lazy, scores_of, basis, shape, basis.project(np.zeros((1, *lazy.shape[1:]), lazy.dtype)).dtype
        )

    def inverse_transform(self, X: Any) -> Any:
        """Return the samples (n_samples, *sample_shape) that scores stand for, neither rounded nor clipped.

        Lazy in, lazy out, as `transform`.
        """
        basis = self.basis_
        expected = (*basis.grid.grid_shape, basis.n_components)
        lazy = as_lazy(X) if is_lazy(X) else np.asarray(X)
        if tuple(lazy.shape[1:]) != expected:
            raise DataError(f"scores have shape {lazy.shape} but this model needs (n_samples, *{expected})")
        if isinstance(lazy, np.ndarray):
            return basis.reconstruct(lazy)
        dtype = np.result_type(lazy.dtype, basis.components.dtype)
        return map_samples(lazy, CellBasis.reconstruct, basis, basis.grid.sample_shape, dtype)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return names of the scores in the order of a flattened sample of them: ``cell0_1_component4``."""
        check_is_fitted(self, "components_")
        names = [
            "cell" + "_".join(map(str, place)) + f"_component{j}"
            for place in np.ndindex(self.grid_.grid_shape)
            for j in range(self.n_components_)
        ]
        return np.asarray(names, dtype=object)

    def _check_samples(self, shape: tuple[int, ...]) -> None:
        if tuple(shape[1:]) != self.sample_shape_:
            raise DataError(f"samples have shape {tuple(shape[1:])} but this model was fitted to {self.sample_shape_}")

    # -- keeping

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to a Zarr group; see `load`."""
        from dpca.models.cell_store import save_model

        check_is_fitted(self, "components_")
        save_model(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; nothing in it is executed.

        Raises
        ------
        StoreError
            If there is no such model, or it comes from a newer version.
        """
        from dpca.models.cell_store import load_model

        return cast("Self", load_model(path))


def spatial_cell(cell_shape: int | tuple[int, ...], axes: Sequence[str]) -> tuple[int, ...]:
    """Return the cell length along each spatial axis of samples whose axes have these names.

    Raises
    ------
    ValueError
        If an axis of channels is not the last one.
    """
    if CHANNEL in axes[:-1]:
        raise ValueError(f"the axes of a sample are {tuple(axes)}: channels must come last, move that axis first")
    if isinstance(cell_shape, int | np.integer):
        return (int(cell_shape),) * sum(axis != CHANNEL for axis in axes)
    if not isinstance(cell_shape, Sequence) or not all(isinstance(c, int | np.integer) for c in cell_shape):
        raise ValueError(f"cell_shape is {cell_shape!r}: give one integer, or one for each spatial axis")
    return tuple(int(c) for c in cell_shape)
