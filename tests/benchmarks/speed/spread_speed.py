"""A basis that is spread over two workers, beside that of one worker with memory enough: time and memory.

    python tests/benchmarks/speed/spread_speed.py

Incremental SVD of 50 components with all its certificates, by blocks of attributes on two workers, and as a chain on
one. Samples are volumes in chunks of a slab each, float32 unless ``--dtype uint8`` is given. Time is that of the
critical path in processor seconds: the busiest worker and this process, which holds the scheduler and adds the sums.
Memory is the growth of a worker's peak. The ratios hardly depend on the number of attributes.
``--attributes 16777216 --samples 2000`` is the stack for which they were asked, 134 GB. On disk it takes 13 GB: slabs
repeat, but no two samples have the same ones. The plan of one worker is then 52 GB, and 33 GB with ``--oversampling 10
--batch 20``. It takes half of that with ``--memory 33e9``, so that it reads few samples at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds.fold import fold
from dpca.engine.folds.spread import spread_fold
from dpca.engine.sources.source import as_source
from dpca.partition.whole import Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.watched import Watched
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.run import Run
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, at_most, options_of, print_line, ratio_of
from tests.engine.folds.worker_memory import forget_peak, status

_K, _SPARE, _BATCH, _SLABS = 50, 60, 100, 16
# Samples of a chunk, and chunks of a slab with values of their own.
_ROWS, _DISTINCT = 10, 20


def stack(folder: Path, n: int, d: int, dtype: str) -> str:
    """Write volumes of d attributes, twenty patterns and noise, in slabs. Later chunks are links to earlier ones."""
    path, side, rows = folder / "volumes.zarr", d // _SLABS, min(_ROWS, n)
    out = zarr.create_array(str(path), shape=(n, _SLABS, side), chunks=(rows, 1, side), dtype=dtype)
    for slab in range(_SLABS):
        rng = np.random.default_rng(slab)
        patterns = rng.standard_normal((20, side), np.float32)
        for chunk, first in enumerate(range(0, n, rows)):
            if chunk >= _DISTINCT and first + rows <= n:
                # The slabs of a sample come from different chunks than those of any other sample.
                linked = (chunk + slab * (chunk // _DISTINCT)) % _DISTINCT
                (path / f"c/{chunk}/{slab}").mkdir(parents=True)
                (path / f"c/{chunk}/{slab}/0").hardlink_to(path / f"c/{linked}/{slab}/0")
                continue
            weights = np.random.default_rng([n, first]).standard_normal((min(rows, n - first), 20), np.float32)
            weights *= np.geomspace(8, 0.5, 20, dtype=np.float32)
            noise = rng.standard_normal((len(weights), side), np.float32)
            values = 3 + weights @ patterns + 0.5 * noise
            if dtype == "uint8":
                np.clip(4 * values + 128, 0, 255, out=values)
            out[first : first + len(weights), slab] = values.astype(dtype)
    return str(path)


def measured(client: Any, work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the critical path, and the largest growth of a worker."""
    grown = client.run(forget_peak)
    before, here = client.run(time.process_time), time.process_time()
    work()
    here = time.process_time() - here
    busiest = max(after - before[at] for at, after in client.run(time.process_time).items())
    # The smallest stacks need no further page.
    return busiest + here, max(1, *(peak - grown[at] for at, peak in client.run(status, "VmHWM:").items()))


def compared_sides(
    path: str, rounds: int, one: Any, two: Any, batch: int, spare: int, memory: int | None = None
) -> Iterator[Line]:
    """Compare the workers of two clusters."""
    source = as_source(path)
    n, shape = source.shape[0], tuple(source.shape[1:])
    k, batch = min(_K, n), min(batch, n)
    rule: Any = InBatches(Sampled(Watched(IncrementalSVD(k, oversampling=spare), n)), batch, chain=True)
    sides: dict[str, tuple[Any, Callable[[], object]]] = {
        "one worker": (one, lambda: fold(rule, source, Whole(shape), run=Run(client=one, memory=memory))),
        "spread": (two, lambda: spread_fold(rule, source, run=Run(client=two, memory=memory and memory // 2))),
    }
    found = [{name: measured(*side) for name, side in sides.items()} for _ in range(rounds)]
    where = f"{n} {source.dtype} volumes of {shape[0] * shape[1]:,} attributes, {k} + {spare} directions"
    for i, (name, unit, asked) in enumerate((("time", "CPU s", 0.65), ("memory", "bytes", 0.55))):
        values = [{side: each[side][i] for side in sides} for each in found]
        yield at_most(
            asked, name=f"spread basis, {name}", where=where, n=n, **ratio_of(values, ["spread"], ["one worker"], unit)
        )


def lines(
    inputs: Inputs,
    n: int = 400,
    d: int = 2**20,
    dtype: str = "float32",
    batch: int = _BATCH,
    spare: int = _SPARE,
    memory: int | None = None,
) -> Iterator[Line]:
    """Measure both sides in turn."""
    n, d = (40, 2**12) if inputs.quick else (n, d)
    sizes = (("large", (n, d)), ("small", (40, 2**12)))
    path, small = (stack(inputs.folder / name, *size, dtype) for name, size in sizes)
    with open_client(workers=1, memory="60GB") as one, open_client(workers=2, memory="60GB") as two:
        list(compared_sides(small, 1, one, two, batch, spare))  # loads code
        yield from compared_sides(path, inputs.rounds, one, two, batch, spare, memory)


def main() -> int:
    """Measure as a program."""
    parser: argparse.ArgumentParser = options_of(__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--attributes", type=int, default=2**20)
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--batch", type=int, default=_BATCH, help="samples of a batch (default: %(default)s)")
    parser.add_argument("--oversampling", type=int, default=_SPARE, help="further directions (default: %(default)s)")
    parser.add_argument("--memory", type=float, help="planned bytes of one worker (default: those of a worker)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        inputs = Inputs(Path(folder).resolve(), options.source, options.rounds, options.quick)
        sizes = options.samples, options.attributes, options.dtype, options.batch, options.oversampling
        for line in lines(inputs, *sizes, memory=options.memory and int(options.memory)):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
