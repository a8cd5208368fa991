"""The spiked covariance model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpca.storage.synthetic.exact import Floats
from dpca.storage.synthetic.model import ImageModel


@dataclass(frozen=True)
class Spiked(ImageModel):
    """Samples x = z A + sigma e of the spiked covariance model, `float32`. For other parameters, see `ImageModel`.

    A (n_spikes, d) is fixed, with values uniform in [-1, 1]. z and e are standard normal (Mitliagkas, Caramanis & Jain
    2013; Alakkari 2020, section 3.4.2), approximated by sums of four uniform numbers. The covariance is
    A^T A + sigma^2 I.

    Attributes
    ----------
    n_spikes : int
        Number of directions with more variance than the noise.
    sigma : float
        Standard deviation of the noise, at least 0.
    """

    n_spikes: int = 10
    sigma: float = 1.0

    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = math.prod(self.sample_shape)
        most = min(values, 256)
        spikes = self.n_spikes
        self._require(1 <= spikes <= most, f"n_spikes is {spikes} with {values:,} attributes: give 1 to {most}")
        self._require(0 <= self.sigma <= 1e6, f"sigma is {self.sigma}: give 0 to 1,000,000")

    @property
    def n_modes(self) -> int:
        """Number of spikes."""
        return self.n_spikes

    @property
    def noise(self) -> float:
        """Standard deviation of the noise."""
        return self.sigma

    def design(self) -> tuple[Floats, Iterable[Floats]]:
        """Return zeros, and the rows of A."""
        shape, values = self.sample_shape, math.prod(self.sample_shape)
        rows = ((2 * self.random(values, i * values) - 1).reshape(shape) for i in range(self.n_spikes))
        return np.zeros(shape), rows
