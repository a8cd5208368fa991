"""Synthetic readings of weather stations with gaps, which are filled as in Alakkari (2020, section 6.4.2).

They replace the thesis's readings of the Global Surface Summary of the Day. A reading is the sum of a season with a
strength that depends on the latitude, smooth patterns that vary over time, and independent noise of each station.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from dpca.kernels.algebra.types import Array


@dataclass(frozen=True)
class Climate:
    """Parameters of one kind of reading: standard deviations, and the persistence of patterns from day to day."""

    season: float
    patterns: float
    own: float
    persistence: float
    smoothness: float


#: Chosen for about the explained variance in the thesis: of temperature 83 % by the first component and 94 % by 30, of
#: wind 40 % and of pressure 89 % by 30.
CLIMATES = {
    "temperature": Climate(8.0, 2.6, 1.4, 0.8, 1.8),
    "wind": Climate(0.3, 1.0, 1.0, 0.3, 0.9),
    "pressure": Climate(2.5, 6.0, 1.8, 0.85, 2.0),
}


def weather(kind: str, days: int = 3653, stations: int = 600, gaps: float = 0.1, seed: int = 0) -> Array:
    """Return readings (days, stations), float32. A share ``gaps`` of them is NaN, in runs of 5 days."""
    rng, climate = np.random.default_rng(seed), CLIMATES[kind]
    at = rng.normal(size=(stations, 3))
    at /= np.linalg.norm(at, axis=1, keepdims=True)
    season = np.cos(2 * np.pi * np.arange(days) / 365.25 - 0.1)[:, None] * np.sign(at[:, 2]) * np.sqrt(np.abs(at[:, 2]))
    # Waves over the globe, longer ones stronger, with independent courses over time.
    waves = rng.normal(size=(200, 3)) * np.sqrt(np.arange(1, 201))[:, None] * 0.8
    strength = np.arange(1.0, 201) ** -climate.smoothness
    patterns = np.sqrt(2 * strength / strength.sum()) * np.cos(at @ waves.T + rng.uniform(0, 2 * np.pi, 200))
    noise = rng.normal(0, np.sqrt(1 - climate.persistence**2), (days, 200))
    times = lfilter([1.0], [1.0, -climate.persistence], noise, axis=0)
    readings = climate.season * np.sqrt(2) * season + climate.patterns * times @ patterns.T
    readings += rng.normal(0, climate.own, readings.shape)
    length = 5
    lost = rng.random((-(-days // length), stations)) < gaps
    readings[np.repeat(lost, length, axis=0)[:days]] = np.nan
    made: Array = readings.astype(np.float32)
    return made


def filled(readings: Array) -> Array:
    """Return readings (days, stations) with gaps interpolated linearly along time (section 6.4.2).

    Gaps before the first reading and after the last one get the nearest reading.

    Raises
    ------
    ValueError
        If a station has no reading.
    """
    whole, days = readings.copy(), np.arange(len(readings))
    for column in whole.T:
        known = np.isfinite(column)
        if not known.any():
            raise ValueError("a station has no reading: remove it")
        column[~known] = np.interp(days[~known], days[known], column[known])
    return whole
