"""A movie of photons of any size is denoised on a cluster of this machine: speed, and time and memory beside the plan.

    python tests/benchmarks/denoised_movie.py --gigabytes 100 --keep-dtype > movie.jsonl  (two processors: half an hour)
    python tests/benchmarks/denoised_movie.py --gigabytes 20 --time-filter

The movie is stored: about ten photons a pixel, 16 bits, compressed by Blosc. Its signal repeats every 2,000 frames, and
its noise does not. The output takes twice the bytes of the movie in floats, and a fifth of them in integers. Seconds
are those of the clock from the first sample to the report, less those that other programs took of the processors.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zarr

from dpca import Denoiser
from dpca.engine.clusters.cluster import open_client
from dpca.jobs import denoise_store, plan_denoising
from dpca.storage import open_stack
from dpca.storage.run import Run
from tests.benchmarks.sides import Line, at_least, at_most, print_line, ratio_of
from tests.benchmarks.terabyte import Watch
from tests.helpers.phantoms import movie

# Frames of a chunk, and of the signal.
_CHUNK, _PERIOD = 64, 2000
# Photons, as a share of those of the phantom.
_LIGHT = 0.3
# Bytes a second of the movie that are asked of two workers.
_ASKED = 120e6


def write_movie(path: Path, n: int, side: int) -> None:
    """Store a movie of n frames."""
    signal = _LIGHT * movie(min(n, _PERIOD), side, cells=max(1, side**2 // 205))[0].astype(np.float32)
    codec = zarr.codecs.BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle", typesize=2)
    array = zarr.create_array(
        path, shape=(n, side, side), chunks=(_CHUNK, side, side), dtype="uint16", compressors=codec
    )

    def write(first: int) -> None:
        expected = signal[np.arange(first, min(first + _CHUNK, n)) % len(signal)]
        # Nearly Poisson's distribution, at a third of the time.
        noise = np.random.default_rng(first).standard_normal(expected.shape, np.float32)
        array[first : first + _CHUNK] = np.maximum(np.rint(expected + np.sqrt(expected) * noise), 0)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(0, n, _CHUNK)))


def lines(folder: Path, n: int, side: int, denoiser: Denoiser) -> Iterator[Line]:
    """Make a movie, plan, denoise, and compare."""
    write_movie(folder / "movie.zarr", n, side)
    stack = open_stack(folder / "movie.zarr")
    with open_client() as client:
        run = Run(client=client)
        (plan,) = plan_denoising(stack, denoiser, workers=[run.n_parallel()], budget=run.task_bytes())
        with Watch(list(client.run(os.getpid).values())) as watch:
            cost = denoise_store(stack, folder / "clean.zarr", denoiser, run=run)
    kind = "movie in time" if denoiser.time_filter else "movie"
    common = {"where": f"{stack.nbytes / 1e9:,.1f} GB of {side} x {side} pixels, uint16", "n": n}
    taken = {"seconds": cost.seconds - watch.taken, "planned": plan.seconds, "asked": stack.nbytes / _ASKED}
    times = [taken | {"workers' processors": watch.spent, "taken by other programs": watch.taken}]
    found = ratio_of(times, ["asked"], ["seconds"], "wall s")
    yield at_least(1.0, name=f"denoising, {kind}, beside 120 MB a second", **found, **common)
    found = ratio_of(times, ["seconds"], ["planned"], "wall s")
    yield at_most(1.15, name=f"denoising, {kind}, against its plan", **found, **common)
    early, most = watch.peak_at(cost.seconds / 10), max(stage.memory for stage in plan.stages.values())
    sizes = [{"peak": float(watch.peak), "at a tenth": float(early), "planned": float(most)}]
    found = ratio_of(sizes, ["peak"], ["planned"], "bytes")
    yield at_most(1.0, name=f"denoising, {kind}, memory against its plan", **found, **common)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=20.0, metavar="GB", help="of the movie (default: 20)")
    parser.add_argument("--side", type=int, default=256, metavar="N", help="pixels (default: %(default)s)")
    parser.add_argument("--time-filter", action="store_true", help="filter in time, too")
    parser.add_argument("--keep-dtype", action="store_true", help="write integers")
    options = parser.parse_args(argv)
    n = max(_CHUNK, round(options.gigabytes * 1e9 / (2 * options.side**2)))
    denoiser = Denoiser(noise="poisson", time_filter=options.time_filter, keep_dtype=options.keep_dtype)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for line in lines(Path(folder).resolve(), n, options.side, denoiser):
            print_line(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
