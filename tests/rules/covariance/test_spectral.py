"""The rule of spectral POD against dense cross-spectral densities, in one stream and merged from several."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import scipy.signal

from dpca.rules.base.state import State
from dpca.rules.covariance.spectral import SpectralSVD

LENGTH, N, D = 16, 23, 40
WINDOW = scipy.signal.get_window("hamming", LENGTH)
RNG = np.random.default_rng(0)
# Few strong patterns in noise, as turbulence has them.
BLOCKS = RNG.normal(size=(N, LENGTH, 6)) @ (RNG.normal(size=(6, D)) * 3 / np.arange(1, 7)[:, None])
BLOCKS = (BLOCKS + 0.5 * RNG.normal(size=BLOCKS.shape) + 2).reshape(N, -1)
EVERY = np.arange(LENGTH // 2 + 1)


def dense(blocks: np.ndarray, center: Any = "constant") -> tuple[np.ndarray, np.ndarray]:
    """Return all eigenvalues (F, d) and the vectors (F, d, d) of densities, by scipy's."""
    series = blocks.reshape(-1, LENGTH, D)
    densities = []
    for block in series:
        x, y = block[:, :, None], block[:, None, :]
        densities.append(scipy.signal.csd(x, y, 1 / 0.5, WINDOW, LENGTH, 0, detrend=center, axis=0)[1])
    values, vectors = np.linalg.eigh(np.mean(densities, axis=0))
    return values[:, ::-1], vectors[:, :, ::-1]


def folded(rule: SpectralSVD, parts: int, batch: int = 3) -> dict[str, np.ndarray]:
    states: list[State] = []
    for part in np.array_split(BLOCKS, parts):
        states.append(rule.init(BLOCKS.shape[1], BLOCKS.dtype))
        for start in range(0, len(part), batch):
            states[-1] = rule.update(states[-1], part[start : start + batch])
    while len(states) > 1:
        before = copy.deepcopy(states[1])
        states = [rule.merge(states[0], states[1]), *states[2:]]
        for name, array in before.arrays.items():
            assert array is not states[0].arrays[name]
    return rule.finish(states[0])


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_densities(parts: int) -> None:
    values, vectors = dense(BLOCKS)
    rule = SpectralSVD(4, WINDOW, EVERY, 0.5, center=True, oversampling=N)
    exact = folded(rule, parts)
    np.testing.assert_allclose(exact["energy"], values[:, :4], rtol=1e-9)
    np.testing.assert_allclose(exact["total"], values.sum(axis=1), rtol=1e-9)
    # scipy's has x's conjugate first: rows of the rule are conjugates of those vectors' columns, or the vectors.
    cosines = np.abs(np.einsum("fkd,fdk->fk", exact["modes"], vectors[:, :, :4]))
    np.testing.assert_allclose(cosines, 1, atol=1e-9)
    few = folded(SpectralSVD(4, WINDOW, EVERY, 0.5, center=True, oversampling=4), parts)
    assert np.abs(few["energy"] - values[:, :4]).sum() < 5e-3 * values[:, :4].sum()
    assert (few["energy"] <= values[:, :4] * (1 + 1e-9)).all()
    np.testing.assert_allclose(few["total"], exact["total"])


def test_some_frequencies_means_and_types() -> None:
    some, mean = np.array([0, 3, 8]), BLOCKS.reshape(-1, D).mean(axis=0)
    values, _ = dense((BLOCKS.reshape(-1, D) - mean).reshape(N, -1), center=False)
    rule = SpectralSVD(2, WINDOW, some, 0.5, mean=mean, oversampling=30)
    state = rule.update(rule.init(LENGTH * D, np.float32), BLOCKS.astype(np.float32))
    assert state.arrays["basis"].dtype == np.complex64
    assert sum(array.nbytes for array in state.arrays.values()) == rule.state_bytes(LENGTH * D, np.float32)
    found = rule.finish(state)
    np.testing.assert_allclose(found["energy"], values[some, :2], rtol=1e-5)
    modes = found["modes"]
    np.testing.assert_allclose(modes @ modes.conj().swapaxes(1, 2), np.eye(2)[None].repeat(3, 0), atol=1e-5)


def test_values_that_leave_the_range_are_refused() -> None:
    rule = SpectralSVD(2, WINDOW, EVERY)
    with pytest.raises(ValueError, match="squares"), np.errstate(all="ignore"):
        rule.update(
            rule.init(LENGTH * D, np.float32), np.full((1, LENGTH * D), 1e38, np.float32) * BLOCKS[:1].astype("f4")
        )
    with pytest.raises(ValueError, match="n_modes"):
        SpectralSVD(0, WINDOW, EVERY)
