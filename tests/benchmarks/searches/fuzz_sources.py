"""Try damaged sources of every format: ``python tests/benchmarks/searches/fuzz_sources.py --n 1000 --seed 1``.

Each is opened, described (``dpca info``) and ingested in a process that may take 1 GB. It must become a stack, or be
refused within 30 s in one sentence that names it. What is not is printed, and left in the folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.storage.sources.fuzz_trial import run_fuzzed


def main() -> int:
    """Run and print the faults; the exit code is 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="number of sources")
    parser.add_argument("--start", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="only formats with this in their names, as HDF5")
    parser.add_argument("--folder", type=Path, help="where the sources are made (default: a temporary folder)")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    faults = Counter()  # type: ignore[var-annotated]
    for fault in run_fuzzed(options.seed, options.start, options.start + options.n, folder, options.only):
        faults[fault.kind] += 1
        print(f"{fault.number} {fault.kind}: {fault.what.rstrip()}\n", flush=True)
    print(
        f"{options.n} sources of seed {options.seed}: {sum(faults.values())} faults {dict(faults) or ''} in '{folder}'"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
