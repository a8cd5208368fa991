"""Analytic signals against their definition: no negative frequencies, and records extended by hand."""

from __future__ import annotations

import numpy as np

from dpca.kernels.analytic import analytic_signal


def test_negative_frequencies_vanish() -> None:
    x = np.random.default_rng(0).normal(size=(64, 3))
    x -= x.mean(axis=0)
    found = analytic_signal(x, None)
    np.testing.assert_allclose(found.real, x, atol=1e-12)
    np.testing.assert_allclose(np.fft.fft(found, axis=0)[33:], 0, atol=1e-12)


def test_records_decay_towards_their_trend() -> None:
    x, t = np.random.default_rng(1).normal(size=(50, 2)).cumsum(axis=0), np.arange(50)
    x -= x.mean(axis=0)
    columns = []
    for column in x.T:
        slope, level = np.polyfit(t, column, 1)
        rest = column - slope * t - level
        before, behind = rest[0] * np.exp(-t[::-1] / 15), rest[-1] * np.exp(-t / 15)
        long = np.concatenate([before, rest, behind]) + slope * np.arange(-50, 100) + level
        spectrum = np.fft.fft(long)
        spectrum[1:75] *= 2
        spectrum[76:] = 0
        columns.append(np.fft.ifft(spectrum)[50:100])
    expected = np.stack(columns, axis=1)
    found = analytic_signal(x, 0.3)
    np.testing.assert_allclose(found, expected - expected.mean(axis=0), atol=1e-10)
    assert abs(expected.mean(axis=0)).min() > 1e-3
