"""What kernel PCA costs and captures beside scikit-learn, and what it takes of a million samples.

    python tests/benchmarks/speed/kernel_speed.py

On MNIST with the kernel exp(-|x - y|^2 / (2 10.5^2)) of pixels in 0..1, 50 components. Günter, Schraudolph &
Vishwanathan 2007 measure the error of the kernel matrix (equation 38), for which all of its entries are needed: here a
side's error is what is left of the trace of the matrix, which its eigenvalues give exactly. `errors` in
`pipelines/studies/kernel/mnist.py` computes theirs.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA
from sklearn.kernel_approximation import Nystroem

from dpca import KernelPCA
from dpca.engine.sources.source import Source
from dpca.storage.remote.memory import peak_resident_bytes
from tests.benchmarks.inputs import Array, Inputs
from tests.benchmarks.sides import Line, alone, at_least, at_most, in_turn, ratio_of

_SIGMA, _K = 10.5, 50
_GAMMA = 1 / (2 * (_SIGMA * 255) ** 2)
_MILLION = 1_000_000


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    x, _ = inputs.digits
    k, counts = (5, (20, 40)) if inputs.quick else (_K, (500, 2000))
    where = f"MNIST, RBF of sigma {_SIGMA:g}, {k} components"
    for m, asked in zip(counts, (6.0, 4.0), strict=True):
        fitted: dict[str, Any] = {}

        def ours(m: int = m, fitted: dict[str, Any] = fitted) -> None:
            fitted["ours"] = KernelPCA(k, gamma=_GAMMA, n_landmarks=m, random_state=0).fit(x)

        def theirs(m: int = m, fitted: dict[str, Any] = fitted) -> None:
            fitted["theirs"] = _scikit_learn(x, k, m)

        rounds = 1 if m > 500 else inputs.rounds
        found = ratio_of(in_turn({"KernelPCA": ours, "scikit-learn": theirs}, rounds), ["scikit-learn"], ["KernelPCA"])
        yield at_least(asked, name=f"kernel PCA, {m} landmarks", where=where, n=len(x), **found)
        model = fitted["ours"]
        errors = {"KernelPCA": model.total_ - model.eigenvalues_.sum(), "scikit-learn": model.total_ - fitted["theirs"]}
        found = ratio_of([errors], ["KernelPCA"], ["scikit-learn"], unit="share")
        yield at_most(1.0, name=f"kernel PCA left over, {m} landmarks", where=where, n=len(x), **found)
    floats, m = x.astype(np.float32), counts[0]
    sides = {
        "bytes": lambda: KernelPCA(k, gamma=_GAMMA, n_landmarks=m, random_state=0).fit(x),
        "floats": lambda: KernelPCA(k, gamma=_GAMMA, n_landmarks=m, random_state=0).fit(floats),
    }
    found = ratio_of(in_turn(sides, inputs.rounds), ["floats"], ["bytes"])
    yield at_least(1.4, name=f"kernel PCA of bytes beside floats, {m} landmarks", where=where, n=len(x), **found)
    found = ratio_of([{"bound": model.captured_bound_, "all": 1.0}], ["bound"], ["all"], unit="share")
    yield at_least(None if inputs.quick else 0.97, name="kernel PCA bound", where=where, n=len(x), **found)
    yield from uneven_lines(2000 if inputs.quick else 20_000)
    yield from million_lines(inputs)


def uneven_lines(n: int) -> Iterator[Line]:
    """Of n samples, one in a hundred lies in 20 groups far from all others: which groups have a landmark?"""
    rng, few = np.random.default_rng(0), n // 100
    groups, x = rng.normal(size=(20, 10)) * 30, rng.normal(size=(n, 10))
    x[::100] = groups[np.arange(few) % 20] + 0.1 * rng.normal(size=(few, 10))
    sides = {"groups": 20.0}
    for how in ("cholesky", "uniform"):
        points = KernelPCA(20, n_landmarks=60, landmarks=how, random_state=0).fit(x).landmarks_
        far = ((points[:, None] - groups[None]) ** 2).sum(axis=2).min(axis=0)
        sides[how] = float((far < 25).sum())
    found = ratio_of([sides], ["cholesky"], ["groups"], unit="share")
    yield at_least(1.0, name="kernel PCA of uneven data", where="1 % in 20 far groups", n=n, **found)


class RepeatedDigits(Source):
    """Digits with noise in their lowest bits, as many as asked for, made when they are read.

    Parameters
    ----------
    digits : array (m, d), uint8
    n : int
    """

    def __init__(self, digits: Array, n: int) -> None:
        super().__init__(f"{n:,} synthetic samples", (n, digits.shape[1]), digits.dtype, (1000, digits.shape[1]))
        self.digits = digits

    def reader(self) -> Any:
        """Return a function that makes chunks."""

        def read(samples: tuple[int, int], region: Any, out: Array) -> None:
            (start, stop), (left, right) = samples, region[0]
            for chunk in range(start // 1000, math.ceil(stop / 1000)):
                rng = np.random.default_rng(chunk)
                rows = self.digits[rng.integers(0, len(self.digits), 1000)]
                rows = rows ^ (rng.integers(0, 256, rows.shape, np.uint8) & 7)
                first, last = max(start, 1000 * chunk), min(stop, 1000 * (chunk + 1))
                out[first - start : last - start] = rows[first - 1000 * chunk : last - 1000 * chunk, left:right]

        return read


def million_lines(inputs: Inputs) -> Iterator[Line]:
    """In a process of its own, whose memory nothing else took."""
    x, _ = inputs.digits
    if inputs.quick:
        n, m, found = 5000, 30, fit_synthetic(x, 5000, 30)
    else:
        n, m = _MILLION, 2000
        np.save(inputs.folder / "digits.npy", x)
        command = [sys.executable, __file__, "fit", str(inputs.folder / "digits.npy"), str(n), str(m)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    where = f"synthetic samples of {x.shape[1]} attributes, {m} landmarks"
    sides = {"fit": found["seconds"], "200 s": 200.0}
    yield at_most(
        1.0, name="kernel PCA of a million", where=where, n=n, **ratio_of([sides], ["fit"], ["200 s"], unit="CPU s")
    )
    sides = {"measured": found["measured"], "planned": found["planned"]}
    found = ratio_of([sides], ["measured"], ["planned"], unit="bytes")
    yield at_most(1.0, name="kernel PCA of a million, memory", where=where, n=n, **found)


def fit_synthetic(x: Array, n: int, m: int) -> dict[str, float]:
    """Fit to synthetic samples of digits, and return what it cost."""
    KernelPCA(2, n_landmarks=10, random_state=0).fit(x[:200])  # what is imported on first use
    before, began = peak_resident_bytes(), time.process_time()
    model = KernelPCA(min(_K, m // 2), gamma=_GAMMA, n_landmarks=m, random_state=0).fit(RepeatedDigits(x, n))
    found = {"seconds": time.process_time() - began, "measured": peak_resident_bytes() - before}
    plan = model.fit_report_.plan
    return {**found, "planned": plan.task_bytes * len(plan.segments)}


def _scikit_learn(x: Array, k: int, m: int) -> float:
    """Return what scikit-learn's components capture."""
    pixels = x.astype(np.float32) / np.float32(255)
    features = Nystroem(gamma=_GAMMA * 255**2, n_components=m, random_state=0).fit(pixels).transform(pixels)
    return float((IncrementalPCA(k).fit(features).explained_variance_ * (len(x) - 1)).sum())


if __name__ == "__main__":
    if sys.argv[1:2] == ["fit"]:
        print(json.dumps(fit_synthetic(np.load(sys.argv[2]), *map(int, sys.argv[3:]))))
        sys.exit()
    sys.exit(alone(lines, __doc__))
