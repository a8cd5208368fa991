"""Fits of sums of exponentials to time series by variable projection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.optimize

from dpca.kernels.algebra.types import Array

_STEPS = 100
# Largest exponent of an initial guess over the whole record; larger ones overflow.
_MOST_GROWTH = 20.0
# Number of values in a window of the second initial guess.
_WINDOW = 600


def amplitudes_of(values: Array, since: Array, rates: Array, coefficients: Array) -> tuple[Array, Array]:
    """Return the amplitudes (m,) of modes that best fit values (n, K), and the exponentials (n, m) times these.

    The least-squares problem of n K equations has normal equations of size m (Jovanovic, Schmid & Nichols 2014,
    equation 10).
    """
    # Exponentials are scaled to unit length, so that growth and decay do not degrade the conditioning.
    courses = _courses(since, rates)
    scale = np.linalg.norm(courses, axis=0)
    courses /= scale
    products = (courses.conj().T @ courses) * (coefficients.conj() @ coefficients.T)
    right = np.einsum("tj,jk,tk->j", courses.conj(), coefficients.conj(), values, optimize=True)
    scaled: Array = np.linalg.lstsq(products, right, rcond=None)[0]
    first = np.exp(-np.maximum(rates.real, 0) * since[-1])
    return scaled * first / scale, courses * scaled


def fit_exponentials(values: Array, times: Array, n_modes: int) -> tuple[Array, Array, bool]:
    """Return the rates (m,) and coefficients (m, K), complex128, of exponentials that best fit values (n, K).

    The residual of the best coefficients is minimized as a function of the rates, by Gauss-Newton steps in a trust
    region with the exact Jacobian (Golub & Pereyra 1973, equation 4.11; Askham & Kutz 2018, section 3), from each of
    two initial guesses.

    Parameters
    ----------
    values : array (n, K), float64
    times : array (n,), float64
    n_modes : int
        At most the rank of the values.

    Returns
    -------
    rates, coefficients
    converged : bool
        Whether the iteration converged.
    """
    length = times[-1] - times[0]
    since = (times - times[0]) / length
    tried = [
        scipy.optimize.least_squares(
            lambda x: _parts(_Fit(values, since, x).residual),
            _parts(np.clip(guess.real, -_MOST_GROWTH, _MOST_GROWTH) + 1j * guess.imag),
            jac=lambda x: _Fit(values, since, x).jacobian(),
            x_scale="jac",
            ftol=1e-15,
            xtol=1e-12,
            gtol=1e-15,
            max_nfev=_STEPS,
        )
        for guess in _first_guesses(values, since, n_modes)
    ]
    found = min(tried, key=lambda each: float(each.cost))
    best = _Fit(values, since, found.x)
    return best.rates / length, best.weights, found.status > 0


class _Fit:
    """The best coefficients for given rates, in units of 1 / length of the record, and their residual."""

    def __init__(self, values: Array, since: Array, x: Array) -> None:
        m = len(x) // 2
        self.since, self.rates = since, x[:m] + 1j * x[m:]
        self.courses = _courses(since, self.rates)
        left, sizes, right = scipy.linalg.svd(self.courses, full_matrices=False)
        kept = sizes > len(since) * np.finfo(np.float64).eps * sizes[0]
        self.left = left[:, kept]
        self.inverse = (right[kept].conj().T / sizes[kept]) @ self.left.conj().T
        self.weights: Array = self.inverse @ values
        self.residual: Array = values - self.left @ (self.left.conj().T @ values)

    def jacobian(self) -> Array:
        """Return the derivatives (2 n K, 2 m) of the real and imaginary residual by the real and imaginary rates."""
        # The derivative of the scaling is left out: it lies along the exponentials, and the projection removes it.
        slopes = self.since[:, None] * self.courses
        across = slopes - self.left @ (self.left.conj().T @ slopes)
        straight = across[:, None, :] * self.weights.T
        conjugate = self.inverse.conj().T[:, None, :] * (slopes.conj().T @ self.residual).T
        by_growth, by_turn = -(straight + conjugate), -1j * (straight - conjugate)
        columns = [derivative.reshape(self.residual.size, -1) for derivative in (by_growth, by_turn)]
        both = np.concatenate(columns, axis=1)
        return np.concatenate([both.real, both.imag])


def _parts(x: Array) -> Array:
    return np.concatenate([x.real.ravel(), x.imag.ravel()])


def _courses(since: Array, rates: Array) -> Array:
    """Return exponentials (n, m), each scaled to at most 1 in absolute value."""
    courses: Array = np.exp(since[:, None] * rates - np.maximum(rates.real, 0) * since[-1])
    return courses


def _first_guesses(values: Array, since: Array, n_modes: int) -> Iterator[Array]:
    """Yield initial guesses of the rates (m,), complex."""
    _, _, right = scipy.linalg.svd(values, full_matrices=False)
    leading = values @ right[:n_modes].T
    steps = np.diff(since)
    # First guess: the map from values to slopes by the trapezoidal rule (Askham & Kutz 2018, section 3.4).
    middles, slopes = (leading[1:] + leading[:-1]) / 2, np.diff(leading, axis=0) / steps[:, None]
    yield np.linalg.eigvals(np.linalg.lstsq(middles, slopes, rcond=None)[0]).astype(np.complex128)
    # Second guess: from windows (matrix pencil, Hua & Sarkar 1990). It is far less sensitive to noise, and treats steps
    # as even.
    n, k = values.shape
    span = min(n // 3, 1 + _WINDOW // k)
    if n - span > n_modes:
        windows = np.lib.stride_tricks.sliding_window_view(values, span, axis=0).reshape(n - span + 1, -1)
        courses = scipy.linalg.svd(windows, full_matrices=False)[0][:, :n_modes]
        factors = np.linalg.eigvals(np.linalg.lstsq(courses[:-1], courses[1:], rcond=None)[0]).astype(np.complex128)
        yield np.log(np.where(factors == 0, 1, factors)) / steps.mean()
