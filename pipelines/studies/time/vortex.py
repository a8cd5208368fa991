"""Turbulent vortices in a periodic box: a pseudo-spectral simulation, deterministic and small.

It replaces the simulation of Alakkari 2020, table 6.3, because its data are not free: the magnitude of vorticity over
time.
"""

from __future__ import annotations

import numpy as np
import scipy.fft

from dpca.kernels.algebra.types import Array


def vortex_frames(count: int = 99, size: int = 32, *, every: int = 8, seed: int = 0) -> Array:
    """Return the magnitude of vorticity (count, size, size, size), float32, of forced turbulence.

    Incompressible Navier-Stokes equations in rotational form, by Fourier series without the upper third (Orszag 1971),
    with viscosity in an integrating factor and two Runge-Kutta stages. It starts from random large vortices; the
    root mean squared velocity stays 1, in a box of length 2 pi (linear forcing, Lundgren 2003).

    Parameters
    ----------
    count, size, seed : int
    every : int
        Number of steps between two frames.
    """
    rng, line = np.random.default_rng(seed), np.fft.fftfreq(size, 1 / size)
    k = np.stack(np.meshgrid(line, line, np.abs(line[: size // 2 + 1]), indexing="ij"))
    k2 = (k**2).sum(axis=0)
    inverse = 1 / np.where(k2 == 0, 1, k2)
    kept = (np.abs(k) < size / 3).all(axis=0) & (k2 > 0)
    step, viscosity = 0.64 / size, 1.6 / size

    def solenoidal(u: Array) -> Array:
        found: Array = kept * (u - k * ((k * u).sum(axis=0) * inverse))
        return found

    def to_space(u: Array) -> Array:
        found: Array = scipy.fft.irfftn(u, (size,) * 3, axes=(1, 2, 3))
        return found

    def vorticity(u: Array) -> Array:
        return to_space(1j * np.cross(k, u, axis=0))

    def push(u: Array) -> Array:
        return solenoidal(scipy.fft.rfftn(np.cross(to_space(u), vorticity(u), axis=0), axes=(1, 2, 3)))

    noise = scipy.fft.rfftn(rng.normal(size=(3, size, size, size)), axes=(1, 2, 3))
    u = solenoidal(noise * k2 * np.exp(-k2 / 4))
    u /= np.sqrt((to_space(u) ** 2).sum(axis=0).mean())
    decay = np.exp(-viscosity * k2 * step)
    frames = np.empty((count, size, size, size), np.float32)
    for number in range(count * every):
        if number % every == 0:
            frames[number // every] = np.sqrt((vorticity(u) ** 2).sum(axis=0))
        first = push(u)
        u = decay * u + step / 2 * (decay * first + push(decay * (u + step * first)))
        u /= np.sqrt((to_space(u) ** 2).sum(axis=0).mean())
    return frames
