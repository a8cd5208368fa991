"""MCA of two synthetic fields of any size on a cluster of this machine: memory beside the budget of the fit, and time.

    python tests/benchmarks/two_large_fields.py --gigabytes 100 > fields.jsonl    (each; two processors: half an hour)

The fields are waves that move from sample to sample, and noise, as 32-bit floats. They are made where they are read:
nothing is stored. The fit may use 2 GB in each worker (``memory_budget``). The program, with the scheduler, also holds
the time series of the principal components. Seconds are those of the clock, less those that other programs took of
the processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpca import MCA
from dpca.engine.clusters.cluster import open_client
from dpca.storage import create_synthetic
from dpca.storage.run import Run
from tests.benchmarks.sides import Line, at_most, print_line, ratio_of
from tests.benchmarks.terabyte import Watch

_BUDGET = 2_000_000_000


def lines(folder: Path, n: int, side: int) -> Iterator[Line]:
    """Fit, and compare memory with the budget and with that at a tenth of the time."""
    fields = [
        create_synthetic(folder / f"{seed}.zarr", "moving", n_samples=n, sample_shape=(side, side), seed=seed)
        for seed in (1, 2)
    ]
    model = MCA(5, n_pca_modes=50, solver="streaming", memory_budget=_BUDGET, random_state=0)
    with open_client() as client:
        workers = list(client.run(os.getpid).values())
        with Watch(workers) as watch, Watch([os.getpid()]) as own:
            model.fit(*fields, run=Run(client=client))
    seconds = watch.seconds - watch.taken
    common = {"where": f"two fields of {fields[0].nbytes / 1e9:,.1f} GB, {side} x {side}", "n": n}
    sizes = {"peak": float(watch.peak), "at a tenth": float(watch.peak_at(watch.seconds / 10))}
    sizes |= {"budget": float(_BUDGET), "program and scheduler": float(own.peak)}
    found = ratio_of([sizes], ["peak"], ["budget"], "bytes")
    yield at_most(1.0, name="memory of two fields, a worker", **found, **common)
    found = ratio_of([sizes], ["program and scheduler"], ["budget"], "bytes")
    yield at_most(1.0, name="memory of two fields, the program", **found, **common)
    times = {"seconds": seconds, "workers' processors": watch.spent, "taken by other programs": watch.taken}
    times["120 MB a second"] = 2 * fields[0].nbytes / 120e6
    found = ratio_of([times], ["seconds"], ["120 MB a second"], "wall s")
    yield at_most(None, name="time of two fields, all passes", **found, **common)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0, metavar="GB", help="of each field (default: 10)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="grid points (default: %(default)s)")
    options = parser.parse_args(argv)
    n = max(100, round(options.gigabytes * 1e9 / (4 * options.side**2)))
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for line in lines(Path(folder).resolve(), n, options.side):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
