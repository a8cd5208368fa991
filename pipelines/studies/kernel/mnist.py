"""All of MNIST in one pass: table 2 of Günter, Schraudolph & Vishwanathan (2007), in Nystrom features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.kernel.courses import Variant
from dpca.pipelines.studies.runner import Section
from dpca.report.page import DataTable
from dpca.rules.kernel.gains import tune
from dpca.rules.kernel.kha import KernelHebbian, begin

COMPONENTS, SIGMA = 50, 10.2
_LANDMARKS, DECAY = 1000, 0.05
# Variants diverge within 1 % of the samples (section 5.2), KHA/et here within 2 %.
_TUNED_STEPS = 1280
# Number of orders in which gains are tuned: at the edge of divergence the result depends on the order.
_ORDERS = 5
_BLOCK = 2000
#: Table 2: reconstruction error and gain, hours of the KHA itself.
THEIRS = {
    "t": (508.42, 5.0, "33:29"),
    "et*": (363.09, 50.0, "41:41"),
    "smd*": (362.44, 1.0, "53:19"),
    "et": (415.48, 0.5, "39:26"),
    "smd": (404.06, 0.05, "64:39"),
}
_NOTES = (
    f"Gains by algorithm 2; ours are the median (least to largest) of {_ORDERS} orders of the samples, on which they "
    "depend at the edge of divergence. Errors are those of the first order with that gain.",
    "Theirs: kernel rows of all samples. Ours: features of 1,000 landmarks, measured against all of the kernel matrix.",
    "The paper states no sigma: 10.2 fits its error of KHA/et*, and of its start, 3341.7, printed without a point.",
)


@dataclass(frozen=True, eq=False)
class Features:
    """Uncorrelated, centered features (l, m) of samples. Their Gram matrix approximates the centered kernel matrix.

    ``variances`` (m,) are their sums of squares.
    """

    values: Array
    variances: Array

    def start(self) -> dict[str, Array]:
        """Return the start of all variants."""
        n = len(self.values)
        expansion = np.random.default_rng(1).normal(0, 1 / np.sqrt(COMPONENTS * n), (COMPONENTS, n))
        return begin(expansion, expansion.astype(np.float32) @ self.values)

    def run(self, variant: Variant, start: dict[str, Array], seed: int, n_steps: int | None = None) -> Array:
        """Return the rows W (r, m) after a pass in a random order, or after its first steps."""
        n = len(self.values)
        order = np.random.default_rng(seed).permutation(n)
        rule = KernelHebbian(variant.gains(n), order, start, self.variances, each_step=True)
        state = rule.init(len(self.variances), float)
        for first in range(0, n if n_steps is None else n_steps, _TUNED_STEPS):
            rule.update(state, self.values[order[first : first + _TUNED_STEPS]])
        return state.arrays["rows"]


def features(x: Array, sigma: float, n_landmarks: int = _LANDMARKS) -> Features:
    """Return features of samples x (l, d), float32, under the Gaussian kernel, from random landmarks."""
    marks = x[np.sort(np.random.default_rng(2).choice(len(x), n_landmarks, replace=False))]
    values = np.concatenate([_gaussian(x[i : i + _BLOCK], marks, sigma) for i in range(0, len(x), _BLOCK)])
    own, vectors = scipy.linalg.eigh(_gaussian(marks, marks, sigma).astype(np.float64))
    kept = own > 1e-6 * own[-1]
    whiten = vectors[:, kept] / np.sqrt(own[kept])
    values -= values.mean(axis=0, dtype=np.float64).astype(np.float32)
    scatter = whiten.T @ (values.T @ values).astype(np.float64) @ whiten
    variances, turn = scipy.linalg.eigh(scatter)
    return Features(values @ (whiten @ turn[:, ::-1]).astype(np.float32), np.maximum(variances[::-1], 0))


def errors(x: Array, sigma: float, projections: Sequence[Array]) -> list[float]:
    """Return |K' - F F^T|_F of the whole centered kernel matrix K' for each F (l, r), centered.

    |K'|^2 - 2 tr(F^T K F) + |F^T F|^2, from blocks of K in float32: K' is never in memory. Costs 2 l^2 d operations.
    """
    joined = np.concatenate(projections, axis=1)
    means, squared, products = np.zeros(len(x)), 0.0, np.zeros_like(joined)
    for i in range(0, len(x), _BLOCK):
        rows = slice(i, i + _BLOCK)
        for j in range(0, i + 1, _BLOCK):
            columns = slice(j, j + _BLOCK)
            block = _gaussian(x[rows], x[columns], sigma)
            twice = 1 if i == j else 2
            squared += twice * float(np.einsum("ij,ij->i", block, block).sum(dtype=np.float64))
            means[rows] += block.sum(axis=1, dtype=np.float64)
            products[rows] += block @ joined[columns]
            if i != j:
                means[columns] += block.sum(axis=0, dtype=np.float64)
                products[columns] += block.T @ joined[rows]
    n = len(x)
    means /= n
    # |K'|^2 for K' = K - 1 m^T - m 1^T + mean(m).
    total = squared - 2 * n * float(means @ means) + n**2 * means.mean() ** 2
    ends = np.cumsum([f.shape[1] for f in projections])
    found = []
    for f, kf in zip(projections, np.split(products, ends[:-1], axis=1), strict=True):
        gram = f.astype(np.float64).T @ f
        captured = np.vdot(f.astype(np.float64), kf.astype(np.float64))
        found.append(float(np.sqrt(total - 2 * captured + np.vdot(gram, gram))))
    return found


def table_section(setting: Setting, n_passes: int = 1) -> Section:
    """Table 2: all of MNIST, one pass, gains by the tuner (four minutes)."""
    x = setting.digits("train")[0].astype(np.float32) / np.float32(255)
    began = time.process_time()
    space = features(x, SIGMA)
    start = space.start()
    mapped = time.process_time() - began
    variants, rows, seconds = usual(space, start), {}, {}
    for name, (variant, seed, _) in variants.items():
        began = time.process_time()
        rows[name] = space.run(variant, start, seed)
        seconds[name] = time.process_time() - began
    best = np.eye(COMPONENTS, len(space.variances))
    ours = errors(x, SIGMA, [space.values @ w.T.astype(np.float32) for w in (start["rows"], best, *rows.values())])
    found = dict(zip(rows, ours[2:], strict=True))
    lines = [
        (
            variant.label,
            f"{THEIRS[name][1]:g}",
            f"{variant.gain:g} ({min(gains):g} to {max(gains):g})",
            f"{THEIRS[name][0]:.2f}",
            f"{found[name]:.2f}",
            THEIRS[name][2],
            f"{seconds[name]:.1f} s",
        )
        for name, (variant, _, gains) in variants.items()
    ]
    notes = (
        *_NOTES,
        f"The start has an error of {ours[0]:.1f} (theirs 33417), the best rows of the features {ours[1]:.2f}.",
        f"Features took {mapped:.1f} s of processor time.",
    )
    head = ("variant", "gain, theirs", "gain, ours", "error, theirs", "error, ours", "hours, theirs", "CPU s, ours")
    tuned_to = {name: gains for name, (_, _, gains) in variants.items()}
    numbers = {"errors": found, "start": ours[0], "best": ours[1], "gains": tuned_to}
    return Section([DataTable("MNIST, 60,000 digits, one pass", head, lines, notes)], numbers={"mnist": numbers})


def tuned(space: Features, start: dict[str, Array], seed: int) -> dict[str, Variant]:
    """Return the variants of table 2 with gains by algorithm 2 in one order: eta first, and then mu with that eta."""
    variants: dict[str, Variant] = {}
    for name, other in {"t": None, "et*": None, "smd*": "et*", "et": None, "smd": "et"}.items():
        tau = 1.0 if name in ("et", "smd") else DECAY

        def variant(gain: float, name: str = name, other: str | None = other, tau: float = tau) -> Variant:
            eta, meta = (gain, 0.0) if other is None else (variants[other].eta, gain)
            return Variant(name, eta, tau, meta, each_step=True)

        variants[name] = variant(tune(lambda gain: space.run(variant(gain), start, seed, _TUNED_STEPS)))
    return variants


def usual(space: Features, start: dict[str, Array]) -> dict[str, tuple[Variant, int, list[float]]]:
    """Return each variant with the median gain of some orders, the first order with this gain, and all gains."""
    orders = [tuned(space, start, seed) for seed in range(_ORDERS)]
    found = {}
    for name in orders[0]:
        gains = [variants[name].gain for variants in orders]
        seed = gains.index(sorted(gains)[_ORDERS // 2])
        found[name] = orders[seed][name], seed, gains
    return found


def _gaussian(x: Array, y: Array, sigma: float) -> Array:
    scale = np.float32(1 / sigma**2)
    exponent = (x * scale) @ y.T
    exponent -= (scale / 2) * np.einsum("ij,ij->i", x, x)[:, None]
    exponent -= (scale / 2) * np.einsum("ij,ij->i", y, y)
    return np.exp(exponent, out=exponent)
