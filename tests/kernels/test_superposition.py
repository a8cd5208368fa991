"""Superposing beside scipy's Rotation, which solves the same problem for one frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from dpca.kernels.superposition import Superposition, centered, is_line


def molecule(rng: np.random.Generator, atoms: int) -> tuple[np.ndarray, np.ndarray]:
    weights = rng.uniform(1, 16, atoms)
    return centered(rng.normal(0, 10, (atoms, 3)), weights), weights


def moved(rng: np.random.Generator, structure: np.ndarray, n: int, noise: float = 0.0) -> np.ndarray:
    """The structure, deformed, turned and shifted at random."""
    turns = Rotation.random(n, rng=rng)
    own = structure + rng.normal(0, noise, (n, *structure.shape)) if noise else np.stack([structure] * n)
    return np.stack([turn.apply(one) for turn, one in zip(turns, own, strict=True)]) + rng.normal(0, 50, (n, 1, 3))


@settings(deadline=None, max_examples=30)
@given(
    atoms=st.integers(3, 40), n=st.integers(1, 5), noise=st.sampled_from([0.0, 0.5, 5.0]),
    mirrored=st.booleans(), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_every_frame_lies_as_scipy_lays_it(atoms: int, n: int, noise: float, mirrored: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    reference, weights = molecule(rng, atoms)
    frames = moved(rng, reference, n, noise) * ([1, 1, -1] if mirrored else 1)
    found = Superposition(reference, weights, np.ones(atoms)).rows_of(frames)
    for frame, row in zip(frames, found, strict=True):
        own = centered(frame, weights)
        theirs = Rotation.align_vectors(reference, own, weights)[0].apply(own)
        # Where several turns are as good, they leave the same distance.
        apart, wanted = (weights @ ((reference - x) ** 2).sum(axis=1) for x in (row, theirs))
        np.testing.assert_allclose(apart, wanted, rtol=1e-9, atol=1e-9)
        if not mirrored:
            np.testing.assert_allclose(row, theirs, atol=1e-5)
        # Turned, and no mirror image: all distances stay, and the side on which the fourth atom lies.
        np.testing.assert_allclose(np.linalg.norm(row, axis=1), np.linalg.norm(own, axis=1), atol=1e-9)
        if atoms > 3:
            np.testing.assert_allclose(np.linalg.det(row[1:4] - row[0]), np.linalg.det(own[1:4] - own[0]), atol=1e-6)


def test_rows_take_weights_and_frames_give_them_back() -> None:
    rng = np.random.default_rng(0)
    reference, masses = molecule(rng, 12)
    chosen = np.where(np.arange(12) < 5, masses, 0)  # the others follow
    reference = centered(reference, chosen)
    frames = moved(rng, reference, 700).astype(np.float32)  # several blocks
    superposition = Superposition(reference, chosen, masses)
    rows = superposition.rows_of(frames)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows / np.sqrt(masses)[:, None], np.stack([reference] * 700), atol=1e-4)
    np.testing.assert_allclose(superposition.frames(rows.copy()), np.stack([reference] * 700), atol=1e-4)
    superposition.rows(frames, frames)  # in place
    np.testing.assert_array_equal(frames, rows)


@pytest.mark.parametrize("frame", ["of one point", "on a line"])
def test_frames_without_a_best_turn_keep_their_shape(frame: str) -> None:
    reference, weights = molecule(np.random.default_rng(1), 6)
    along = np.linspace(-3, 4, 6)[:, None] * (frame == "on a line")
    frames = (along * [1.0, 2.0, 2.0] + 7.0)[None]
    row = Superposition(reference, weights, np.ones(6)).rows_of(frames)[0]
    assert np.isfinite(row).all()
    np.testing.assert_allclose(np.linalg.norm(row - row[0], axis=1), 3 * np.abs(along - along[0])[:, 0], atol=1e-9)


def test_what_lies_on_a_line() -> None:
    structure = np.array([[0.0, 0, 0], [1, 2, 3], [2, 4, 6], [0, 0, 1]])
    assert is_line(structure, np.array([1.0, 1, 1, 0]))
    assert is_line(structure[:2], np.ones(2))
    assert not is_line(structure, np.ones(4))


@pytest.mark.parametrize("along", [(1.0, 0.0, 0.0), (0.37, -0.81, 0.45)])
def test_a_line_is_one_up_to_the_rounding_of_its_coordinates(along: tuple[float, float, float]) -> None:
    """Coordinates come as float32, to a ten-millionth; an atom beside the line by a thousandth determines the turn."""
    line = (np.linspace(10, 40, 9)[:, None] * along + [3.0, 50.0, 1.0]).astype(np.float32).astype(np.float64)
    assert is_line(line, np.ones(9))
    bent = line.copy()
    bent[4] += 0.03 * np.array([along[1], -along[0], 0.0])
    assert not is_line(bent, np.ones(9))
    # Weights of squared distances: those of the atoms beside the line count by their roots.
    assert not is_line(bent, np.where(np.arange(9) == 4, 1e-3, 1.0))


def test_one_atom_is_a_line() -> None:
    assert is_line(np.array([[1.0, 2.0, 3.0]]), np.ones(1))
    assert is_line(np.full((4, 3), 7.0), np.ones(4))


def test_frames_that_are_too_large_to_superpose_are_refused() -> None:
    reference, weights = molecule(np.random.default_rng(2), 5)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="large"):
        Superposition(reference, weights, np.ones(5)).rows_of(np.full((1, 5, 3), 1e308))
