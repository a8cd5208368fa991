"""A molecule with known normal modes: an elastic network in a heat bath, anywhere in space.

In a harmonic potential each normal mode is an independent oscillator. Langevin's equation for it is solved exactly
between two frames (Gillespie 1996, for two variables), so frames are exact samples of the process at any distance. In
equilibrium the variance along a mode of angular frequency omega is k T / (m omega^2) (Alakkari 2020, equation 6.13).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm
from scipy.spatial.distance import pdist, squareform
from scipy.spatial.transform import Rotation

from dpca.kernels.algebra.types import Array

# Root mean squared displacement of an atom by the slowest mode. It is small compared with the molecule: otherwise
# potential and rotation would not be linear.
_DISPLACED = 0.05


@dataclass(frozen=True, eq=False)
class ElasticNetwork:
    """Atoms (n, 3) in equilibrium, of mass 1, and their modes.

    Attributes
    ----------
    structure : array (n, 3)
    modes : array (3 n - 6, 3 n)
        Orthonormal rows, the slowest first, without translations and rotations.
    frequencies : array (3 n - 6,)
        Angular, ascending; 1 is the slowest one.
    temperature : float
        k T.
    """

    structure: Array
    modes: Array
    frequencies: Array
    temperature: float

    def frames(self, count: int, step: float, friction: float, seed: int, *, moved: bool = True) -> Array:
        """Return frames (count, n, 3), float32, ``step`` apart in time, in equilibrium from the first one on.

        ``friction`` is the rate at which velocities decay. If ``moved``, each frame is turned and shifted at random, by
        any angle and about 100 times the distance of atoms.
        """
        rng = np.random.default_rng(seed)
        w2, kt = self.frequencies**2, self.temperature
        flow = np.stack([expm(step * np.array([[0.0, 1.0], [-one, -friction]])) for one in w2])
        still = np.zeros_like(flow)
        still[:, 0, 0], still[:, 1, 1] = kt / w2, kt
        noise = np.linalg.cholesky(still - flow @ still @ flow.swapaxes(1, 2) + 1e-14 * kt * np.eye(2))
        state = np.sqrt(still.diagonal(axis1=1, axis2=2)) * rng.normal(size=(len(w2), 2))
        amplitudes = np.empty((count, len(w2)))
        for row in amplitudes:
            row[:] = state[:, 0]
            kick = rng.normal(size=(len(w2), 2, 1))
            state = (flow @ state[..., None] + noise @ kick)[..., 0]
        frames = self.structure + (amplitudes @ self.modes).reshape(count, -1, 3)
        if moved:
            turns = Rotation.random(count, rng=rng).as_matrix()
            frames = frames @ turns + rng.normal(0, 100, (count, 1, 3))
        return frames.astype(np.float32)


def network(n_atoms: int, seed: int = 0, reach: float = 2.6) -> ElasticNetwork:
    """Return a compact network of atoms at least 0.9 apart, with springs between those within ``reach`` (Tirion 1996).

    A shorter reach makes the slowest modes softer. Raises ValueError if the network is not rigid.
    """
    rng = np.random.default_rng(seed)
    atoms = [np.zeros(3)]
    radius = 0.75 * n_atoms ** (1 / 3)
    while len(atoms) < n_atoms:
        tried = rng.uniform(-radius, radius, 3) * [1.6, 1.0, 0.7]
        if np.linalg.norm(tried / [1.6, 1.0, 0.7]) <= radius and min(np.linalg.norm(tried - a) for a in atoms) >= 0.9:
            atoms.append(tried)
    structure = np.array(atoms) - np.mean(atoms, axis=0)
    joined = np.argwhere(np.triu(squareform(pdist(structure)) < reach, 1))
    hessian = np.zeros((3 * n_atoms, 3 * n_atoms))
    for a, b in joined:
        along = structure[b] - structure[a]
        block = np.outer(along, along) / (along @ along)
        for i, j, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            hessian[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] += sign * block
    values, vectors = np.linalg.eigh(hessian)
    values, modes = values[6:], vectors.T[6:]  # the first ones move the whole
    if values[0] < 1e-8:
        raise ValueError(f"the network of seed {seed} is not rigid: use another seed, or a longer reach")
    frequencies = np.sqrt(values / values[0])
    return ElasticNetwork(structure, modes, frequencies, _DISPLACED**2 * n_atoms)
