"""What the exact products of integers cost beside those of float32 in BLAS.

    python tests/benchmarks/speed/integer_products.py

Both make the lower triangle of X^T X from samples in memory, on one thread. Floats are converted before, and integers
are packed and added to float64 within the measured time. Values of 16 bits are random, or near each other in each
column, as the noise of a camera. The first call is that of a new process which finds the machine code in the cache,
with the import of the kernel.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import scipy.linalg

from dpca.kernels.algebra import integers
from dpca.storage.remote.tasks import one_blas_thread
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of

#: Samples, attributes, dtype, the range of the values of a column if it is small, and the ratio that is asked.
_PRODUCTS = (
    (4096, 75, "uint8", None, None),
    (4096, 300, "uint8", None, 1 / 3.5),
    (4096, 1875, "uint8", None, 1 / 4),
    (4096, 3072, "uint8", None, 1 / 4),
    (4096, 1875, "uint16", None, 1 / 0.9),
    (4096, 256, "uint16", 255, None),
    (4096, 1875, "uint16", 255, None),
)
_LEAST_SECONDS = 0.2
_FIRST_CALL = """
import time, numpy as np, dpca.kernels.algebra.linalg
began = time.process_time()
from dpca.kernels import integer_products
integer_products.add_gram(np.zeros((9, 75), np.uint8), np.zeros((75, 75)), np.zeros(75))
print(time.process_time() - began)
"""


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure."""
    kernel = integers.kernel()
    if not kernel:
        return
    for n, d, dtype, near, asked in _PRODUCTS:
        rng, most = np.random.default_rng(0), np.iinfo(dtype).max
        least = rng.integers(0, most - near, d) if near else 0
        x = (least + rng.integers(0, near or most, (n, d), endpoint=True)).astype(dtype)
        values, out, cross, total = x.astype(np.float32), np.empty((d, d), np.float32), np.zeros((d, d)), np.zeros(d)
        (syrk,) = scipy.linalg.get_blas_funcs(("syrk",), (values,))

        def floats(a: np.ndarray = values, c: np.ndarray = out, syrk: object = syrk) -> None:
            syrk(1.0, a.T, beta=0.0, c=c.T, overwrite_c=True, lower=False)  # type: ignore[operator]

        def exact(a: np.ndarray = x, c: np.ndarray = cross, t: np.ndarray = total) -> None:
            kernel.add_gram(a, c, t)

        with one_blas_thread():
            exact(), floats()
            rounds = [{"integers": _seconds(exact), "float32": _seconds(floats)} for _ in range(inputs.rounds)]
        found = ratio_of(rounds, ["integers"], ["float32"])
        feature = kernel.INSTRUCTION.feature
        name = f"products, {dtype}{', near each other' if near else ''}, {d} attributes"
        yield at_most(asked, name=name, where=f"random, {feature}", n=n, **found)
    first = [{"first call": _first_call(), "50 ms": 0.05} for _ in range(inputs.rounds + 1)][1:]
    found = ratio_of(first, ["first call"], ["50 ms"])
    yield at_most(1.0, name="products, first call", where="a new process, warm cache", n=9, **found)


def _first_call() -> float:
    command = [sys.executable, "-c", _FIRST_CALL]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _seconds(function: object) -> float:
    began, calls = time.thread_time(), 0
    while time.thread_time() - began < _LEAST_SECONDS:
        function()  # type: ignore[operator]
        calls += 1
    return (time.thread_time() - began) / calls


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
