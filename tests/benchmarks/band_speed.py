"""What a fit of bands costs beside a fit of cells with as many attributes; prints processor seconds and their ratio.

    python tests/benchmarks/band_speed.py --stack lfw.zarr --cell 25 --rounds 3

The fits alternate, because the speed of a machine with neighbors drifts. Bands by mean and variance take a pass for
the statistics, which is counted.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from dpca import BandPCA, CellPCA
from dpca.storage import open_stack


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", required=True, help="stack store")
    parser.add_argument("--cell", type=int, default=25, help="side of a cell; bands have as many attributes")
    parser.add_argument("--components", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-budget", type=int, help="bytes of a task")
    options = parser.parse_args()
    stack = open_stack(options.stack)
    k, budget = options.components, options.memory_budget
    n_channels = stack.sample_shape[-1] if stack.axes[-1] == "channel" else 1
    size = options.cell ** (len(stack.sample_shape) - (n_channels > 1)) * n_channels
    fits: dict[str, Callable[[], Any]] = {
        "cells": lambda: CellPCA(k, cell_shape=options.cell, memory_budget=budget).fit(stack),
        **{
            f"bands, {mapping}": lambda mapping=mapping: BandPCA(
                k, band_size=size, mapping=mapping, random_state=0, memory_budget=budget
            ).fit(stack)
            for mapping in ("random", "mean-variance")
        },
    }
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(options.rounds):
        for name, fit in fits.items():
            began = time.process_time()
            fit()
            seconds[name].append(time.process_time() - began)
    print(f"{stack.n_samples:,} samples of {math.prod(stack.sample_shape):,} attributes, {size:,} in a cell or a band")
    for name, found in seconds.items():
        ratio = median(a / b for a, b in zip(found, seconds["cells"], strict=True))
        print(f"{name:24}{median(found):8.1f} processor seconds{ratio:8.2f} x cells")


if __name__ == "__main__":
    main()
