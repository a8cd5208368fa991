"""The blocked kernel Hebbian algorithm against algorithm 1 of Günter, Schraudolph & Vishwanathan (2007)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpca.pipelines.studies.kernel.courses import passes
from dpca.rules.base.rule import DivergedError
from dpca.rules.kernel.gains import VARIANTS, gains_of, tune
from dpca.rules.kernel.kha import KernelHebbian, begin
from tests.rules.streams import fold

L, R = 90, 4
SEED = 3
SETTINGS = {
    "constant": (0.02, 0.0),
    "t": (0.05, 0.0),
    "et*": (0.5, 0.0),
    "et": (0.02, 0.0),
    "smd*": (0.5, 0.2),
    "smd": (0.02, 0.2),
    "s": (0.02, 0.2),
    "ts": (0.05, 0.2),
    "es": (0.3, 0.2),
}


def algorithm_1(kernel, a, orders, variant, eta_0, tau, mu, each_step):
    """Algorithm 1 with K of samples that are not centered; yield A after each step."""
    n, r = len(kernel), len(a)
    decays, by_length, by_eigenvalue, smd = VARIANTS[variant]
    m = np.full((n, n), 1 / n)
    k_ = kernel - m @ kernel - (m @ kernel).T + m @ kernel @ m  # 12
    a, ak, rho, b, xi = a.copy(), a @ k_, np.zeros(r), np.zeros((r, n)), 0.99
    lt, t, eta = np.tril, 0, None
    for order in orders:
        for i, p in enumerate(order):
            t += 1
            if each_step or i == 0:
                eta = np.full(r, eta_0 * (tau / (t + tau) if decays else 1))  # 9
                if by_eigenvalue:
                    lam = np.sqrt(np.diag(ak @ ak.T) / np.diag(a @ a.T))  # 21
                    eta = eta / lam * (np.linalg.norm(lam) if by_length else 1)  # 19, 22
            k, e = k_[p], np.eye(n)[p]
            y = a @ k  # 14
            gamma = np.outer(y, e) - lt(np.outer(y, y)) @ a  # 16
            gamma_k = np.outer(y, k) - lt(np.outer(y, y)) @ ak  # 33
            gain = eta
            if smd:
                rho = rho + mu * np.diag(gamma_k @ b.T)  # 32
                gain = np.exp(rho) * eta
                z = b @ k
                b = xi * b + np.diag(gain) @ (
                    np.outer((a + xi * b) @ k, e)
                    - lt(np.outer(y, y)) @ (a + xi * b)
                    - xi * lt(np.outer(z, y) + np.outer(y, z)) @ a
                )  # 37
            ak = ak + np.diag(gain) @ gamma_k  # 34
            a = a + np.diag(gain) @ gamma  # 31
            yield a
    assert np.abs(ak - a @ k_).max() < 1e-10


@pytest.fixture(scope="module")
def kernel():
    """Uncentered RBF kernel of points that are not centered."""
    x = np.random.default_rng(0).normal(1, [2, 1.2, 0.6], (L, 3))
    return np.exp(-((x[:, None] - x) ** 2).sum(2) / 9)


@pytest.fixture(scope="module")
def first():
    return np.random.default_rng(1).normal(0, np.sqrt(1 / (R * L)), (R, L))


def centered(kernel):
    return kernel - kernel.mean(0) - kernel.mean(0)[:, None] + kernel.mean()


@pytest.mark.parametrize("each_step", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_make_the_steps_of_algorithm_1(variant, each_step, kernel, first):
    """Sample by sample over a pass and a half, then whole passes; l is no multiple of the block."""
    eta, mu = SETTINGS[variant]
    rng = np.random.default_rng(SEED)
    orders = [rng.permutation(L) for _ in range(3)]
    expected = list(algorithm_1(kernel, first, orders, variant, eta, float(L), mu, each_step))
    gains, k = gains_of(variant, eta, float(L), mu), centered(kernel)
    found = [step["expansion"] for step in itertools.islice(passes(k, gains, first, SEED, each_step=each_step), 3)]
    for number, expansion in enumerate(found):
        np.testing.assert_allclose(expansion, expected[(number + 1) * L - 1], rtol=0, atol=1e-12)
    rule = KernelHebbian(gains, orders[0], begin(first, first @ k), each_step=each_step)
    for count in (1, 2, 63, 64, 65, 89):
        state = rule.update(rule.init(L, float), k[orders[0][:count]])
        np.testing.assert_allclose(rule.finish(state)["expansion"], expected[count - 1], rtol=0, atol=1e-12)
    moved = np.abs(expected[-1] - first).max()
    assert moved > 0.01


@pytest.mark.parametrize("variant", ["et*", "smd"])
def test_features_make_the_steps_of_their_kernel(variant, kernel, first):
    """Uncorrelated features: the kernel's eigenvectors by the roots of the eigenvalues, which they capture exactly."""
    values, vectors = np.linalg.eigh(centered(kernel))
    features = vectors[:, -60:] * np.sqrt(values[-60:])
    gains, order = gains_of(variant, SETTINGS[variant][0], float(L), 0.2), np.random.default_rng(SEED).permutation(L)
    rule = KernelHebbian(gains, order, begin(first, first @ features), values[-60:], each_step=True)
    found = rule.finish(fold(rule, features[order], 20))  # small batches: more blocks than are kept
    same = next(passes(features @ features.T, gains, first, SEED, each_step=True))
    np.testing.assert_allclose(found["expansion"], same["expansion"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["eigenvalues"], same["eigenvalues"], rtol=1e-12)
    np.testing.assert_allclose(found["rows"] @ features.T, same["rows"], rtol=0, atol=1e-12)


def test_rows_become_the_eigenvectors(first):
    """W = A Phi' has unit rows, so that A is an eigenvector divided by the root of its eigenvalue."""
    vectors = np.linalg.qr(np.random.default_rng(2).normal(size=(L, R + 1)))[0]
    values = np.array([16.0, 8.0, 4.0, 2.0, 0.5])
    kernel = (vectors * values) @ vectors.T
    found = next(itertools.islice(passes(kernel, gains_of("et*", 1.0, 10.0 * L), first, 0), 39, None))
    turned = np.abs(found["expansion"] @ vectors) * np.sqrt(values)
    np.testing.assert_allclose(turned, np.eye(R, R + 1), atol=0.01)
    np.testing.assert_allclose(found["eigenvalues"], values[:R], rtol=1e-3)


def test_divergence_is_seen_by_its_size(kernel, first):
    """Long before anything is NaN: after the first block already."""
    sizes = []
    with pytest.raises(DivergedError, match="diverged.*eta"):
        for found in passes(centered(kernel), gains_of("constant", 100.0, 1.0), first, 0):
            sizes.append(found)
    assert not sizes


def test_the_tuner_takes_the_largest_gain_that_converges(kernel, first):
    """Algorithm 2: 500, 200, 100, 50, ... until a run does not diverge."""
    tried = []

    def run(gain):
        tried.append(gain)
        next(passes(centered(kernel), gains_of("constant", gain, 1.0), first, 0))

    found = tune(run)
    assert tried[:4] == [500, 200, 100, 50]
    assert tried[-1] == found
    for gain in tried[:-1]:
        with pytest.raises(DivergedError):
            run(gain)


def test_the_tuner_says_that_nothing_converges():
    def run(gain):
        tried.append(gain)
        raise DivergedError

    tried = []
    with pytest.raises(DivergedError, match=r"0\.3.*0\.01"):
        tune(run, 0.3, 0.01)
    assert tried == [0.2, 0.1, 0.05, 0.02, 0.01]
