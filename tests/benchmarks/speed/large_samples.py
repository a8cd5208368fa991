"""What few samples of many attributes cost: `PCA` against Dask's SVD and the method of snapshots in numpy.

    python tests/benchmarks/speed/large_samples.py

64 float32 volumes of 256 x 256 x 256 (4.3 GB) in chunks of 128 x 256 x 256, 10 components written to a Zarr store. Each
side is a process of its own; processor time and peak memory are those of the process. `PCA` may use as much memory as a
task of a worker of 2 GB. Dask's SVD gets blocks of 2**20 attributes. numpy holds 2**20 attributes of all samples at a
time, and reads the stack twice, as `PCA` does. Cells of few samples, and `EOF`, which also searches for missing values,
are compared with the fit of the whole samples. 20
volumes of 512 x 512 x 512 (10.7 GB) follow, in chunks of 4 x 512 x 512, which numpy also reads once in each pass: so it
takes the time of reading twice, products and writing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import zarr

from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, alone, at_most, ratio_of

_SIDES = {
    "PCA": """
import dpca
from dpca.storage.run import Run
if __name__ == "__main__":
    dpca.PCA(10).fit(source, run=Run(threads=1, memory=16 * 10**8)).save(target)
""",
    "EOF": """
import dpca
from dpca.storage.run import Run
if __name__ == "__main__":
    dpca.EOF(10).fit(source, run=Run(threads=1, memory=16 * 10**8)).save(target)
""",
    "CellPCA": """
import dpca
from dpca.storage.run import Run
if __name__ == "__main__":
    dpca.CellPCA(2, cell_shape=16).fit(source, run=Run(threads=1, memory=16 * 10**8))
""",
    "da.linalg.svd": """
import dask, dask.array as da
with dask.config.set(scheduler="threads", num_workers=2):
    x = da.from_zarr(source)
    x = x.reshape(len(x), -1).rechunk((len(x), 2**20))
    u, s, v = da.linalg.svd(x - x.mean(axis=0))
    da.to_zarr(v[:10].rechunk((10, 2**20)), target)
""",
    "numpy": """
import math, numpy as np, zarr
x = zarr.open_array(source)
n, depth = x.shape[0], max(1, 2**20 // math.prod(x.shape[2:]))
gram = np.zeros((n, n))
def slabs():
    for first in range(0, x.shape[1], depth):
        slab = x[:, first : first + depth]
        slab = slab.reshape(n, -1).astype(np.float64)
        yield first, slab - slab.mean(axis=0)
for _, slab in slabs():
    gram += slab @ slab.T
values, vectors = np.linalg.eigh(gram)
weights = (vectors[:, ::-1][:, :10] / np.sqrt(values[::-1][:10])).T
out = zarr.create_array(target, shape=(10, *x.shape[1:]), chunks=(10, depth, *x.shape[2:]), dtype="float32")
for first, slab in slabs():
    out[:, first : first + depth] = (weights @ slab).reshape(10, -1, *x.shape[2:])
""",
}
_MEASURED = """
import json, resource, sys
source, target = sys.argv[1:]
{}
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss]))
"""


def stack(folder: Path, n: int, side: int, depth: int) -> Path:
    """Write the volumes: six patterns, an offset and noise."""
    rng, path = np.random.default_rng(0), folder / "volumes.zarr"
    out = zarr.create_array(path, shape=(n, side, side, side), chunks=(1, depth, side, side), dtype="float32")
    patterns = rng.standard_normal((6, side, side, side), np.float32)
    for i, weights in enumerate(rng.normal(size=(n, 6)) * (10, 8, 6, 4, 3, 2)):
        noise = rng.standard_normal(patterns.shape[1:], np.float32)
        out[i] = 5 + np.tensordot(weights.astype(np.float32), patterns, 1) + 0.5 * noise
    return path


def lines(inputs: Inputs) -> Iterator[Line]:
    """Measure all sides in turn."""
    n, side = (16, 32) if inputs.quick else (64, 256)
    where, seconds, peaks = _measured(inputs, (n, side, side // 2), list(_SIDES))
    for other, asked in (("da.linalg.svd", 0.33), ("numpy", None)):
        found = ratio_of(seconds, ["PCA"], [other])
        yield at_most(asked, name=f"large samples, time of {other}", where=where, n=n, **found)
        found = ratio_of(peaks, ["PCA"], [other], "bytes")
        yield at_most(asked, name=f"large samples, memory of {other}", where=where, n=n, **found)
    for side_of, name in (("CellPCA", "cells of 16"), ("EOF", "fields")):
        found = ratio_of(seconds, [side_of], ["PCA"])
        yield at_most(None, name=f"large samples, {name}", where=where, n=n, **found)
    n, side = (16, 64) if inputs.quick else (20, 512)
    where, seconds, _ = _measured(inputs, (n, side, 4), ["PCA", "numpy"])
    found = ratio_of(seconds, ["PCA"], ["numpy"])
    yield at_most(1.5, name="large samples, time of reading twice, products and writing", where=where, n=n, **found)


def _measured(
    inputs: Inputs, size: tuple[int, int, int], sides: Sequence[str]
) -> tuple[str, list[dict[str, float]], list[dict[str, float]]]:
    """Return what was measured, and the processor seconds and the peak memory of each side, a dict for each round."""
    (n, side, depth), source = size, stack(inputs.folder, *size)
    seconds: list[dict[str, float]] = []
    peaks: list[dict[str, float]] = []
    for _ in range(inputs.rounds):
        both: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for name in sides:
            target = inputs.folder / "components.zarr"
            program = [sys.executable, "-c", _MEASURED.format(_SIDES[name]), str(source), str(target)]
            said = subprocess.run(program, capture_output=True, text=True, check=True).stdout
            both[0][name], both[1][name] = json.loads(said.splitlines()[-1])
            shutil.rmtree(target, ignore_errors=True)
        seconds.append(both[0])
        peaks.append(both[1])
    shutil.rmtree(source)
    where = f"{n} float32 volumes of {side} x {side} x {side}, in chunks of {depth} planes, 10 components"
    return where, seconds, peaks


if __name__ == "__main__":
    sys.exit(alone(lines, __doc__))
