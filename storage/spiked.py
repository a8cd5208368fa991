"""Samples of the spiked covariance model, whose covariance is known, made shard by shard."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpca.storage.errors import DataError
from dpca.storage.ingest import ingest
from dpca.storage.progress import Progress, no_progress
from dpca.storage.readers import Reader
from dpca.storage.readers.base import Numbered, digest
from dpca.storage.stack import Stack

if TYPE_CHECKING:
    from distributed import Client

# Changes when the same parameters begin to give other samples.
_RECIPE = 1


class Spiked(Reader):
    """Samples x = z A + sigma e of the spiked covariance model, as a source to ingest.

    A (n_spikes, d) is fixed, uniform in [-1, 1]; z and e are standard normal (Mitliagkas, Caramanis & Jain 2013;
    Alakkari 2020, section 3.4.2). The covariance is A^T A + sigma^2 I. Every sample follows from the seed and its own
    number alone, so it does not matter in which pieces, or where, they are made.

    Parameters
    ----------
    n_samples : int
    sample_shape : int or tuple of int
        Shape of one sample; its attributes are d.
    n_spikes : int
        Directions of variance beyond the noise.
    sigma : float
        Standard deviation of the noise, 0 or more.
    seed : int
        From 0 to 2**64 - 1.
    dtype : float32 or float64

    Raises
    ------
    DataError
        If a parameter makes no sense.
    """

    kind = "spiked"
    name = "spiked covariance model"
    encoded = False

    def __init__(
        self,
        n_samples: int = 10_000,
        sample_shape: int | Sequence[int] = 1000,
        *,
        n_spikes: int = 10,
        sigma: float = 1.0,
        seed: int = 0,
        dtype: DTypeLike = np.float32,
    ) -> None:
        shape = (sample_shape,) if isinstance(sample_shape, int) else tuple(map(int, sample_shape))
        if n_samples < 1 or not shape or min(shape) < 1:
            raise DataError(f"{n_samples} samples of shape {shape} hold nothing: every length must be at least 1")
        if not 1 <= n_spikes <= math.prod(shape):
            raise DataError(f"n_spikes is {n_spikes} for {math.prod(shape)} attributes: give 1 to that many")
        if not 0 <= sigma < math.inf:
            raise DataError(f"sigma is {sigma}: a standard deviation is finite and not negative")
        if not 0 <= seed < 2**64:
            raise DataError(f"the seed is {seed}: give a whole number from 0 to 2**64 - 1")
        if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise DataError(f"dtype is {np.dtype(dtype)}: choose float32 or float64")
        self._n, self.sample_shape, self.dtype = n_samples, shape, np.dtype(dtype)
        self._n_spikes, self._sigma, self._seed = n_spikes, float(sigma), seed

    @property
    def names(self) -> Sequence[str]:
        """Numbers of the samples."""
        return Numbered(self._n)

    def __len__(self) -> int:
        return self._n

    @cached_property
    def loadings(self) -> NDArray[np.float64]:
        """A, shape (n_spikes, d); the covariance is ``loadings.T @ loadings + sigma**2 * identity``."""
        rng = np.random.default_rng(self._seed)
        return rng.uniform(-1, 1, (self._n_spikes, math.prod(self.sample_shape)))

    def fingerprint(self) -> str:
        """Return a hash of all parameters."""
        shape = "x".join(map(str, self.sample_shape))
        return digest([self.kind, _RECIPE, self._n, shape, self._n_spikes, self._sigma, self._seed, self.dtype.str])

    def part(self, indices: Sequence[int]) -> Callable[[], NDArray[Any]]:
        """Ship the parameters and the numbers of the samples."""
        # The loadings follow from the seed: what is shipped stays small.
        model = Spiked(
            self._n,
            self.sample_shape,
            n_spikes=self._n_spikes,
            sigma=self._sigma,
            seed=self._seed,
            dtype=self.dtype,
        )
        return partial(_make, model, indices)

    def sample(self, index: int) -> NDArray[Any]:
        """Make one sample, of ``sample_shape``."""
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=index << 128))
        weights = rng.standard_normal(self._n_spikes)
        noise = rng.standard_normal(math.prod(self.sample_shape), self.dtype)
        # Without BLAS, whose last bit may depend on the number of its threads.
        values: NDArray[Any] = np.einsum("k,kd->d", weights, self.loadings) + self._sigma * noise
        return values.astype(self.dtype).reshape(self.sample_shape)


def _make(model: Spiked, indices: Sequence[int]) -> NDArray[Any]:
    made = np.empty((len(indices), *model.sample_shape), model.dtype)
    for place, index in enumerate(indices):
        made[place] = model.sample(int(index))
    return made


def write_spiked(
    target: str | os.PathLike[str],
    n_samples: int = 10_000,
    sample_shape: int | Sequence[int] = 1000,
    *,
    n_spikes: int = 10,
    sigma: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
    client: Client | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Stack:
    """Write a stack store of samples of the spiked covariance model.

    The store grows shard by shard, on the workers of ``client`` if there is one, in memory that does not depend on its
    size; an interrupted call goes on where it was, and a finished one is recognized. The same parameters give the same
    bytes for any number of workers.

    Parameters
    ----------
    target : path-like
        Where the store appears once it is whole.
    n_samples, sample_shape, n_spikes, sigma, seed, dtype
        Of the model, see `Spiked`; the defaults are those of Alakkari 2020, table 3.2.
    client, overwrite, progress
        As for `dpca.storage.ingest`.

    Returns
    -------
    Stack
        Opened. ``Spiked(...)`` with the same parameters has the ``loadings`` that its covariance follows from.

    Raises
    ------
    DataError, StoreError
        As `Spiked` and `dpca.storage.ingest`.
    """
    model = Spiked(n_samples, sample_shape, n_spikes=n_spikes, sigma=sigma, seed=seed, dtype=dtype)
    return ingest(model, target, client=client, overwrite=overwrite, progress=progress)
