"""Table 4.3 of the thesis (Alakkari 2020) on this machine: seconds a cell, processors against accelerator.

    python tests/benchmarks/gpu_cells.py                          (LFW from ../shared/data)
    python tests/benchmarks/gpu_cells.py --stack lfw.zarr --cells 5 10

Both columns time the whole of it: the stack read once, the covariances, the components in numpy arrays. The processors
run `CellPCA.fit`; the accelerator, which torch or CuPy finds, runs the same rule on stacks of cells. Seconds grow with
the number of samples; the thesis's are for the 13,233 of LFW.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from threadpoolctl import threadpool_info

from dpca.engine.folds.device import find_device
from dpca.pipelines.studies.partitions.device_speed import TABLE_4_3, cell_speeds
from dpca.storage import open_stack
from dpca.storage.remote.memory import thread_count
from tests.benchmarks.inputs import Inputs

LINE = "{:>12} {:>4} {:>12} {:>12} {:>12} {:>12}   {}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", help="stack store of images with 3 channels (default: LFW, ingested)")
    parser.add_argument("--cells", type=int, nargs="+", default=[5, 10, 25], help="which of the table's columns")
    options = parser.parse_args()
    device = find_device()
    if device is None:
        print("no GPU was found (torch.cuda or CuPy): only the processors are measured")
    else:
        print(f"GPU: {device.model}, by {device.library}")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        stack = open_stack(options.stack) if options.stack else Inputs(Path(folder).resolve()).stack
        kinds = {info.get("architecture", "?") for info in threadpool_info() if info["user_api"] == "blas"}
        print(f"{stack.n_samples:,} samples of {stack.sample_shape}; {thread_count()} processors, BLAS for {kinds}")
        print(LINE.format("cell", "k", "CPU, s", "GPU, s", "thesis CPU", "thesis GPU", "captured variance apart by"))
        cases = tuple(case for case in TABLE_4_3 if case.cell_shape[0] in options.cells)
        for found in cell_speeds(stack, device, cases):
            case = found.case
            gpu, apart = ("-", "") if found.gpu is None else (f"{found.gpu:.5f}", f"{found.apart:.1e}")
            cell = "x".join(map(str, (*case.cell_shape, *stack.sample_shape[2:])))
            ours, theirs = (f"{found.cpu:.5f}", gpu), (case.published.cpu, case.published.gpu)
            print(LINE.format(cell, case.n_components, *ours, *theirs, apart))
    return 0


if __name__ == "__main__":
    sys.exit(main())
