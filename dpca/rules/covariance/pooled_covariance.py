"""Principal components that several places share, from one covariance within places, summed over all places."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import DTypeLike

from dpca.kernels.algebra.integers import is_exact
from dpca.kernels.algebra.types import Array, blocks
from dpca.rules.base.rule import Rule, bytes_of
from dpca.rules.base.state import State, StateLayout
from dpca.rules.covariance.covariance import (
    BAND_ROWS,
    BLOCK_ROWS,
    QUIET,
    Covariance,
    CovariancePCA,
    add_block,
)
from dpca.rules.covariance.shifts import spread_of
from dpca.rules.covariance.weighted_sums import of_weights

# Rows of integers, over all places, that are added to a matrix at a time.
_INTEGER_ROWS = 2**14
# Arrays of the state of one covariance.
_NAMES = ("shift", "sum", "cross")
# Smaller updates spend most of their time on the sums of the places.
_FEWEST_SAMPLES = 32


@dataclass(frozen=True)
class SeveralCovariances(Rule):
    """Base class of rules with several covariances in one state."""

    mergeable = True
    least_samples = 2

    @abstractmethod
    def _covariances(self, state: State) -> Iterator[State]:
        """Yield the state of each covariance, with views as arrays."""

    def _start(self, state: State, dtype: DTypeLike) -> None:
        for covariance in self._covariances(state):
            Covariance()._start(covariance, dtype)

    def merge(self, a: State, b: State) -> State:
        """Return the state of both streams, with the shifts of the first."""
        for mine, other in zip(self._covariances(a), self._covariances(b), strict=True):
            Covariance().merge(mine, other)
        for name, count in b.counts.items():
            a.counts[name] += count
        return a


@dataclass(frozen=True)
class _Places(SeveralCovariances):
    """Base class of rules with one covariance for each group of places, and a shift and a sum for each place."""

    @property
    @abstractmethod
    def _one(self) -> Covariance:
        """The rule of the covariance of one group."""

    @property
    @abstractmethod
    def _sizes(self) -> Iterable[tuple[int, int]]:
        """The number of places, and of attributes of each of them, of each group of any part."""

    @QUIET
    def _take(self, state: State, batch: Array) -> None:
        add, stop = _add_integers if is_exact(batch.dtype) else _add_numbers, 0
        for group in self._covariances(state):
            places = group.arrays["sum"]
            start, stop = stop, stop + places.size
            add(group, batch[:, start:stop].reshape(len(batch), *places.shape))
        state.counts["n_samples"] += len(batch)

    @QUIET
    def weigh(self, state: State, batch: Array, weights: Array) -> State:
        """Process samples with weights, in float64."""
        stop = 0
        for group in self._covariances(state):
            places = group.arrays["sum"]
            start, stop = stop, stop + places.size
            Covariance().weigh(group, batch[:, start:stop].reshape(len(batch), *places.shape), weights)
        state.counts["n_samples"] += float(weights.sum())
        return state

    def of_weighted_rows(self, rows: State, mean: Array, total: float, dtype: DTypeLike) -> State:
        """Return the state of samples with weights, see `Covariance`."""
        state = self.init(len(mean), dtype)
        at = 0
        for group, own in zip(self._covariances(state), self._covariances(rows), strict=True):
            shift = group.arrays["shift"]
            means, at = mean[at : at + shift.size].reshape(shift.shape), at + shift.size
            of_weights(own, means, total, shift if is_exact(dtype) else None)
        state.arrays |= rows.arrays
        state.counts["n_samples"] = total
        return state

    def is_batch_invariant(self, dtype: DTypeLike) -> bool:
        """Return whether sums are exact."""
        return is_exact(dtype)

    def batch_rows(self, dtype: DTypeLike) -> int:
        """Return the best number of samples per update: enough for a product over the places of the largest group."""
        rows = _INTEGER_ROWS if is_exact(dtype) else BLOCK_ROWS
        samples = max(_FEWEST_SAMPLES, math.ceil(rows / max(n_places for n_places, _ in self._sizes)))
        return min(samples, self._one.batch_rows(dtype))

    def work_bytes(self, n_rows: int, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of temporary arrays: rows of a group, a product, the eigensolver, sums and means."""
        return max(self._group_work_bytes(n_rows, n_places, d, dtype) for n_places, d in self._sizes)

    def _group_work_bytes(self, n_rows: int, n_places: int, d: int, dtype: DTypeLike) -> int:
        if is_exact(dtype):
            rows = min(n_rows, _samples_at_once(n_places)) * n_places
            copies = 2 * rows * (d + 1) * np.dtype(dtype).itemsize
        else:
            rows = min(n_rows * n_places, BLOCK_ROWS)
            copies = 56 * min(n_places, BLOCK_ROWS) * d  # sums and shifts of places, and their changes
        return copies + self._one.work_bytes(rows, d, dtype) + 8 * n_places * (2 * d + BAND_ROWS)


@dataclass(frozen=True)
class PooledCovariancePCA(_Places):
    """Leading principal components of groups of places. All places of a group share their components.

    Alakkari 2020, section 4.3.1, pooled. A sample is a sequence of places: all places of group 0, then those of group
    1, and so on. The places of a group have equal size. Each place p of a group of P places has its own mean. The
    covariance within places is

        C = 1/P sum_p C_p,   C_p = 1/(n - 1) sum_i (x_ip - m_p)(x_ip - m_p)^T,

    the within-group covariance of discriminant analysis (Rao 1948). Among all sets of k vectors for every place, its
    leading eigenvectors have the least squared error, summed over places. This error is (n - 1) P times the sum of the
    discarded eigenvalues.

    Products are those of :class:`~dpca.rules.covariance.covariance.Covariance`. The samples of several places are rows
    of one product, and each place has a shift. Products are exact for integers of 8 and 16 bits. For
    other dtypes, the mean of a place or its drift costs no accuracy.

    Parameters
    ----------
    n_components : int or None
        Number of components of each group. None retains one for each attribute; larger numbers are cut to that.
    groups : sequence of (n_places, n_features)
        Number of places of each group, and number of attributes of each of its places.
    center : bool
        Whether the covariances are about the means. If false, they are about 0, and ``mean`` is 0.

    Notes
    -----
    Costs O(n d c) time for d attributes in places of c, and O(c^3) once; state: 8 c^2 bytes per group and 16 d. Results
    of ``finish``, float64: ``mean`` (d,), and for each group g ``components-g`` (k, c); ``explained_variance-g`` (k,),
    descending, and ``total_variance-g`` (), both averages over its places: of the variances of the scores, and of the
    total variance.
    """

    n_components: int | None
    groups: Sequence[tuple[int, int]]
    center: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not self.groups or min(map(min, self.groups)) < 1:
            raise ValueError(f"groups are {self.groups}: give at least one place and one attribute in each group")

    @cached_property
    def _one(self) -> CovariancePCA:
        return CovariancePCA(self.n_components, center=self.center)

    @property
    def _sizes(self) -> Sequence[tuple[int, int]]:
        return self.groups

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        crosses: StateLayout = {f"cross-{g}": ((d, d), float) for g, (_, d) in enumerate(self.groups)}
        return {"shift": ((n_features,), float), "sum": ((n_features,), float), **crosses}

    def _start(self, state: State, dtype: DTypeLike) -> None:
        held, n_features = self._columns[-1].stop, len(state.arrays["sum"])
        if n_features != held:
            raise ValueError(f"samples have {n_features} attributes, but the groups have {held}: give equal numbers")
        super()._start(state, dtype)

    def _finish(self, state: State) -> dict[str, Array]:
        means, result = [], {}
        for g, group in enumerate(self._covariances(state)):
            found = self._one.finish(group)
            means.append(found["mean"].ravel())
            n_places = len(found["mean"])
            result[f"components-{g}"] = found["components"]
            for name in ("explained_variance", "total_variance"):
                result[f"{name}-{g}"] = found[name] / n_places
        return {"mean": np.concatenate(means), **result}

    def unpack(self, result: dict[str, Array]) -> list[dict[str, Array]]:
        """Return the result of each group. Its ``mean`` (n_places, n_features) has a row for each place."""
        names, found = ("components", "explained_variance", "total_variance"), []
        for g, columns in enumerate(self._columns):
            mean = result["mean"][columns].reshape(self.groups[g])
            found.append({"mean": mean, **{name: result[f"{name}-{g}"] for name in names}})
        return found

    def add_block(self, state: State, block: dict[str, Array], places: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Add the result of `PooledBlocks` for a block of places to a state that has no samples of these places.

        Parameters
        ----------
        state : State
        block : dict
            Its arrays are removed, one by one, to free their memory.
        places : iterable of (group, positions)
            For each group of the block, the group here, and the positions of its places in that.
        """
        state.counts["n_samples"] = int(block.pop("n_samples"))
        groups = list(self._covariances(state))
        for at, (g, positions) in enumerate(places):
            groups[g].arrays["cross"] += block.pop(f"cross-{at}")
            for name in ("shift", "sum"):
                groups[g].arrays[name][positions] = block.pop(f"{name}-{at}")

    @property
    def _columns(self) -> list[slice]:
        """The columns of the attributes of each group."""
        ends = itertools.accumulate((n_places * d for n_places, d in self.groups), initial=0)
        return [slice(*both) for both in itertools.pairwise(ends)]

    def _covariances(self, state: State) -> Iterator[State]:
        for g, columns in enumerate(self._columns):
            arrays = {name: state.arrays[name][columns].reshape(self.groups[g]) for name in ("shift", "sum")}
            yield State({**arrays, "cross": state.arrays[f"cross-{g}"]}, dict(state.counts))

    def result_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of a result."""
        return 8 * n_features + sum(self._one.result_bytes(d, dtype) for _, d in self.groups)


@dataclass(frozen=True)
class PooledBlocks(_Places):
    """The sums of `PooledCovariancePCA` for each of several blocks of places, which its ``add_block`` adds up.

    Parameters
    ----------
    blocks : sequence of groups
        The groups of places of each part, see `PooledCovariancePCA`.

    Notes
    -----
    Results of ``finish``: the arrays ``shift-g`` and ``sum-g`` (n_places, n_features), and ``cross-g`` (n_features,
    n_features) of each group g, and ``n_samples`` (). A shift that is the same for all places, as of integers of 8 and
    16 bits, has shape (1, 1).
    """

    blocks: Sequence[Sequence[tuple[int, int]]]

    @property
    def _one(self) -> Covariance:
        return Covariance()

    @cached_property
    def _sizes(self) -> set[tuple[int, int]]:
        return set(itertools.chain.from_iterable(self.blocks))

    def of_part(self, part: int) -> PooledBlocks:
        """Return the rule that starts the state of a block."""
        return replace(self, blocks=(self.blocks[part],))

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return _layout_of(self.blocks[0])

    def _covariances(self, state: State) -> Iterator[State]:
        # The groups follow from the state, because one rule updates the states of all blocks.
        for g in range(len(state.arrays) // len(_NAMES)):
            yield State({name: state.arrays[f"{name}-{g}"] for name in _NAMES}, dict(state.counts))

    def _finish(self, state: State) -> dict[str, Array]:
        shifts = {name: values for name, values in state.arrays.items() if name.startswith("shift")}
        short = {name: values[:1, :1].copy() for name, values in shifts.items() if np.ptp(values) == 0}
        return {**state.arrays, **short, "n_samples": np.asarray(state.counts["n_samples"])}

    def state_bytes(self, n_features: int, dtype: DTypeLike) -> int:
        """Return the bytes of the largest state of a block with this number of attributes."""
        layouts = (_layout_of(groups) for groups in set(self.blocks) if sum(map(math.prod, groups)) == n_features)
        return max(map(bytes_of, layouts))


def _layout_of(groups: Sequence[tuple[int, int]]) -> StateLayout:
    shapes = [{"shift": places, "sum": places, "cross": (places[1],) * 2} for places in groups]
    return {f"{name}-{g}": (of[name], float) for g, of in enumerate(shapes) for name in _NAMES}


def _add_integers(group: State, values: Array) -> None:
    """Add integers of 8 or 16 bits (n_samples, n_places, d). All places have the same shift."""
    n_places, d = values.shape[1:]
    shift, total, cross = (group.arrays[name] for name in ("shift", "sum", "cross"))
    together = State({"shift": shift[0], "sum": np.zeros(d), "cross": cross})
    together.counts["n_samples"] = group.counts["n_samples"] * n_places
    for few in blocks(len(values), _samples_at_once(n_places)):
        Covariance().update(together, values[few].reshape(-1, d))
    total += values.sum(axis=0, dtype=np.int64)
    total -= len(values) * shift[0, 0]


def _add_numbers(group: State, values: Array) -> None:
    """Add floats or wider integers (n_samples, n_places, d)."""
    for rows in blocks(len(values), BLOCK_ROWS):
        block = values[rows].swapaxes(0, 1)
        spread, step = spread_of(group), max(1, BLOCK_ROWS // block.shape[1])
        for places in blocks(len(block), step):
            arrays = {name: group.arrays[name][places] for name in ("shift", "sum")}
            part = State({**arrays, "cross": group.arrays["cross"]}, dict(group.counts))
            add_block(part, block[places], spread)
        group.counts["n_samples"] += block.shape[1]


def _samples_at_once(n_places: int) -> int:
    return max(1, _INTEGER_ROWS // n_places)
