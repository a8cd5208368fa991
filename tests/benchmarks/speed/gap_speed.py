"""What fits to samples with missing values cost, and how close they come to the truth.

    python tests/benchmarks/speed/gap_speed.py

Samples are made of components and noise; 30 % of the values are missing, at random or under blocks that move. Fits of
several passes stand beside expectation-maximization in memory, ``PCA(missing="fill-em")`` of statsmodels where it is
installed, and fits of one pass beside those of several. For each, one line has the processor time, and one the distance
of the components from those of the truth, the root of the sum of squared sines of principal angles.

Of samples without missing values, fits that support them stand beside those that do not.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dpca import PCA, CellPCA, StreamingPCA
from dpca.metrics import principal_angles
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_most, in_turn, ratio_of

_THEIRS, _PASSES, _ONE = 'statsmodels PCA(missing="fill-em")', "PCA", "StreamingPCA"


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    sizes = [(1000, 20, 5), (2000, 30, 5), (10_000, 20, 5), (10_000, 20, 20)]
    for n, side, k in [(200, 8, 2)] if inputs.quick else sizes:
        for kind in ("at random", "moving blocks"):
            yield from _fits(inputs, *made(n, side, k, kind), f"{n} x {side} x {side}, {k} components, {kind}")
    yield from _complete(inputs)


def made(n: int, side: int, rank: int, kind: str) -> tuple[Array, Array]:
    """Return samples (n, side, side) with NaN for missing values, and the components of the truth."""
    rng = np.random.default_rng(0)
    components = np.linalg.qr(rng.standard_normal((side**2, rank)))[0].T
    scores = rng.standard_normal((n, rank)) * np.linspace(3, 1, rank) * side / np.sqrt(rank)
    x = (scores @ components + 0.3 * rng.standard_normal((n, side**2))).reshape(n, side, side)
    if kind == "at random":
        return np.where(rng.random(x.shape) < 0.3, np.nan, x), components
    covered = np.arange(side * 11 // 20)
    for i, sample in enumerate(x):
        sample[np.ix_((2 * i + covered) % side, (3 * i + covered) % side)] = np.nan
    return x, components


def _fits(inputs: Inputs, x: Array, truth: Array, where: str) -> Iterator[Line]:
    k, found = len(truth), {}

    def ours(name: str, model: Any) -> Callable[[], None]:
        def fit() -> None:
            found[name] = model.fit(x).components_

        return fit

    def theirs() -> None:
        from statsmodels.multivariate.pca import PCA as PeerPCA

        fitted = PeerPCA(x.reshape(len(x), -1), ncomp=k, standardize=False, missing="fill-em")
        found[_THEIRS] = fitted.eigenvecs[:, :k].T

    options = {"gaps": "iterate", "random_state": 0}
    sides = {_PASSES: ours(_PASSES, PCA(k, **options)), _ONE: ours(_ONE, StreamingPCA(k, **options))}
    beside = importlib.util.find_spec("statsmodels") is not None
    rounds = in_turn({**sides, **({_THEIRS: theirs} if beside else {})}, inputs.rounds)
    off = {name: float(np.linalg.norm(np.sin(principal_angles(rows, truth)))) for name, rows in found.items()}
    about = {"where": where, "n": len(x)}
    for passes, above, below, time, angle in (
        ("several passes", _PASSES, _THEIRS, 0.1, 1.05),
        ("one pass", _ONE, _PASSES, None, None),
    ):
        name, near = f"gaps, {passes}: {where}", f"gaps, {passes}, distance: {where}"
        if below in off:
            yield at_most(time, name=name, **ratio_of(rounds, [above], [below]), **about)
            yield at_most(angle, name=near, **ratio_of([off], [above], [below], unit="variance"), **about)
        else:
            what = "statsmodels is not installed"
            yield at_most(time, name=name, ratio=None, what=what, sides={}, unit="CPU s", **about)


def _complete(inputs: Inputs) -> Iterator[Line]:
    n = 400 if inputs.quick else 20_000
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 24, 24)) @ rng.standard_normal((24, 24))
    for of, options in ((PCA, {}), (CellPCA, {"cell_shape": 8})):
        for dtype in ("float32", "float64"):
            samples = x.astype(dtype)
            models = {gaps: of(5, gaps=gaps, random_state=0, **options) for gaps in ("iterate", "reject")}
            rounds = in_turn({gaps: partial(one.fit, samples) for gaps, one in models.items()}, inputs.rounds)
            name, where = f"{of.__name__}, complete samples, {dtype}", f"{n} x 24 x 24, 5 components"
            yield at_most(1.02, name=name, where=where, n=n, **ratio_of(rounds, ["iterate"], ["reject"]))


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
