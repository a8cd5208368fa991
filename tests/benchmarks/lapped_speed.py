"""What an overlap costs a fit of cells; prints processor seconds and their ratio to those without, for float input.

    python tests/benchmarks/lapped_speed.py --samples 2000 --side 100 --cell 10 --overlaps 2 5

The fits alternate, because the speed of a machine with neighbors drifts. Filtered values are floating-point numbers,
so the fit to compare with is one of float32 samples; that of 8-bit samples stands beside it. The bound is the share of
attributes that an overlap adds to a cell, (1 + 2 overlap / cell) ** 2.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from dpca import CellPCA
from tests.conftest import smooth_images


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--side", type=int, default=100, help="pixels of a side of an RGB image")
    parser.add_argument("--cell", type=int, default=10)
    parser.add_argument("--components", type=int, default=20)
    parser.add_argument("--overlaps", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    x = smooth_images(options.samples, (options.side, options.side, 3))
    floats = x.astype(np.float32)
    k, cell = options.components, options.cell

    def fit(samples: Any, overlap: int = 0) -> Callable[[], Any]:
        return CellPCA(k, cell_shape=cell, overlap=overlap).fit, samples

    fits = {"float32": fit(floats), "uint8": fit(x)}
    fits |= {f"uint8, overlap {o}": fit(x, o) for o in options.overlaps}
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(options.rounds):
        for name, (run, samples) in fits.items():
            began = time.process_time()
            run(samples)
            seconds[name].append(time.process_time() - began)
    bounds = {f"uint8, overlap {o}": (1 + 2 * o / cell) ** 2 for o in options.overlaps}
    for name, found in seconds.items():
        ratio = median(a / b for a, b in zip(found, seconds["float32"], strict=True))
        bound = f", bound {bounds[name]:.2f}" if name in bounds else ""
        print(f"{name:20}{median(found):8.2f} processor seconds{ratio:8.2f} x float32{bound}")


if __name__ == "__main__":
    main()
