"""What hundreds of components of photographs of 256 x 256 x 3 cost beside their products, and what they capture.

    python tests/benchmarks/speed/many_components.py                      (a quarter of an hour, 4 GB on the disk)
    python tests/benchmarks/speed/many_components.py --samples 400 --components 20 --side 32 --part 200

The samples are sums of thousands of cosines with power that falls with the square of the frequency, as in photographs,
and noise. Products are X V^T and C^T X of each batch alone, by float32 BLAS, and by the exact products of bytes of the
rule. Memory is that of the process beyond its memory before the fit. The reference of the captured variance of other
samples is the exact solution in float64, for a part of the samples that both fits read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import scipy.fft
import zarr

from dpca import StreamingPCA
from dpca.engine.folds.fold import FoldReport
from dpca.kernels.algebra import integers
from dpca.kernels.algebra.types import blocks
from dpca.storage import open_stack
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.run import Run
from tests.benchmarks.inputs import Array
from tests.benchmarks.sides import Line, at_most, one_processor, print_line, ratio_of

_OTHERS, _COLUMNS, _CHUNK = 1000, 2048, 64
_NOISE = 2**22


def cosines(n: int, side: int, seed: int) -> Array:
    """Return samples (n, side, side, 3), uint8."""
    rng, most = np.random.default_rng(seed), min(40, side)
    waves = scipy.fft.idct(np.eye(side), norm="ortho", axis=0)[:, :most].astype(np.float32)
    frequency = np.hypot(*np.meshgrid(np.arange(most), np.arange(most)))
    size = np.where(frequency < most, 1 / (1 + frequency), 0)
    size = (50 * side * size / np.sqrt(np.square(size).sum())).astype(np.float32)
    colors = np.array([[1, 0.1, 0.1], [0.95, 0, -0.1], [0.85, -0.1, 0.1]], np.float32)
    noise = np.random.default_rng(0).normal(110.5, 4, _NOISE + side * side * 3).astype(np.float32)
    found = np.empty((n, side, side, 3), np.uint8)
    for sample in found:
        weights = np.tensordot(colors, rng.standard_normal((3, most, most), np.float32) * size, 1)
        first = int(rng.integers(_NOISE))
        values = noise[first : first + sample.size].reshape(sample.shape).copy()
        values += np.moveaxis(waves @ weights @ waves.T, 0, -1)
        sample[...] = np.clip(values, 0, 255, out=values)
    return found


def exact(x: Array, k: int) -> tuple[Array, Array]:
    """Return the mean and the leading components of rows in float64, by the Gram matrix of the rows."""
    mean, gram = x.mean(axis=0, dtype=float), np.zeros((len(x),) * 2)
    for columns in blocks(x.shape[1], _COLUMNS):
        part = x[:, columns] - mean[columns]
        gram += part @ part.T
    values, vectors = np.linalg.eigh(gram)
    turn = (vectors[:, ::-1][:, :k] / np.sqrt(values[::-1][:k])).T
    rows = [turn @ (x[:, columns] - mean[columns]) for columns in blocks(x.shape[1], _COLUMNS)]
    return mean, np.concatenate(rows, axis=1)


def captured(x: Array, mean: Array, components: Array) -> float:
    """Return the share of the variance of rows about a mean along orthonormal components."""
    total, along = 0.0, np.zeros((len(x), len(components)))
    for columns in blocks(x.shape[1], _COLUMNS):
        part = x[:, columns] - mean[columns]
        total += float(np.square(part).sum())
        along += part @ components[:, columns].T
    return float(np.square(along).sum()) / total


def product_seconds(x: Array, q: int) -> dict[str, float]:
    """Return processor seconds of both products of a batch: of floats by BLAS, of bytes by the kernel of the rule."""
    n, d = x.shape
    basis, rows = np.random.default_rng(0).standard_normal((q, d), np.float32), x.astype(np.float32)
    cross, image = rows @ basis.T, np.empty_like(basis)
    began = time.process_time()
    np.matmul(rows, basis.T, out=cross)
    np.matmul(cross.T, rows, out=image)
    found = {"products": time.process_time() - began}
    if integers.kernel():
        from dpca.kernels import wide_products

        levels, few = (1000 * basis).astype(np.int16), np.ones((n, q), np.int16)
        sums = np.zeros((q, n))
        parts = [(columns, np.ascontiguousarray(levels[:, columns].T)) for columns in blocks(d, _COLUMNS)]
        for seconds in (0.0, found["products"]):  # the first one compiles
            began = time.process_time()
            for columns, wide in parts if seconds else parts[:1]:
                wide_products.WideColumns(wide, n).add_projected(x[:, columns], sums, [])
            combined = wide_products.WideColumns(few, _COLUMNS)
            for columns, wide in parts if seconds else parts[:1]:
                combined.add_combined(x[:, columns], np.zeros((q, len(wide))))
            found["products of bytes"] = time.process_time() - began
    return found


def lines(folder: Path, n: int, k: int, side: int, part: int) -> Iterator[Line]:
    """Measure and compare."""
    d, where = side * side * 3, f"cosines of {side} x {side} x 3, k = {k}"
    shape = (n, side, side, 3)
    array = zarr.create_array(
        folder / "samples.zarr", shape=shape, chunks=(_CHUNK, *shape[1:]), dtype="uint8", compressors=None
    )
    for start in range(0, n, _CHUNK):
        array[start : start + _CHUNK] = cosines(min(_CHUNK, n - start), side, start)
    stack, run = open_stack(folder / "samples.zarr"), Run(threads=1)
    held, began = peak_resident_bytes(), time.process_time()
    model = StreamingPCA(k, random_state=0).fit(stack, run=run)
    spent, report = time.process_time() - began, model.fit_report_
    assert isinstance(report, FoldReport)
    planned = float(report.plan.task_bytes + report.plan.caller_bytes)
    sizes = {"peak": float(peak_resident_bytes() - held), "planned": planned}
    yield at_most(
        1.0, name="many components, memory", where=where, n=n, **ratio_of([sizes], ["peak"], ["planned"], "bytes")
    )
    size = report.plan.batch_rows
    few = array[: min(size, n)].reshape(-1, d)
    times = {name: seconds * n / len(few) for name, seconds in product_seconds(few, k + 60).items()}
    read = (
        _spent(lambda: [array[start : start + _CHUNK] for start in range(0, min(n, 2000), _CHUNK)]) * n / min(n, 2000)
    )
    sides = {"fit": spent, **times, "reading": read}
    yield at_most(
        2.2,
        name="many components, fit",
        where=f"{where}, batches of {size}",
        n=n,
        **ratio_of([sides], ["fit"], ["products"]),
    )
    del few
    others = cosines(_OTHERS, side, n).reshape(_OTHERS, d)
    share = partial(captured, others)
    seen = array[:part].reshape(part, d)
    reference = share(*exact(seen, k))
    few_model = StreamingPCA(k, random_state=0).fit(seen, run=run)
    shares = {
        "reference": 1 - reference,
        "fit": 1 - share(few_model.mean_.ravel(), few_model.components_.reshape(k, d)),
        "fit of all": 1 - share(model.mean_.ravel(), model.components_.reshape(k, d)),
    }
    found = ratio_of([shares | {"point": 0.001 + shares["reference"]}], ["fit"], ["point"], "share")
    yield at_most(
        1.0,
        name="many components, variance of others that is missed",
        where=f"{where}, {part} samples",
        n=part,
        **found,
    )


def _spent(work: object) -> float:
    began = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--components", type=int, default=500, metavar="K", help="(default: %(default)s)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--part", type=int, default=4000, metavar="N", help="of the reference (default: %(default)s)")
    options = parser.parse_args(argv)
    with one_processor(), tempfile.TemporaryDirectory(dir=".") as folder:
        for line in lines(Path(folder), options.samples, options.components, options.side, options.part):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
