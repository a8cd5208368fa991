"""Compress odd stacks, to each goal: none may be missed in silence.

    python tests/benchmarks/searches/fuzz_goals.py --n 500 --seed 0

prints every run whose goal is missed, as numpy and scikit-image measure it, and every run that ends in something else
than a sentence of ours; then how many there were of each kind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.jobs.compressed.odd_stacks import GOALS, odd_trial, run


def main() -> int:
    """Run the series; return 1 if a goal was missed in silence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=500, help="runs of each goal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goals", nargs="*", default=GOALS)
    parser.add_argument("--refused", action="store_true", help="print what was refused, too")
    options = parser.parse_args()
    wrong = 0
    for goal in options.goals:
        counts: Counter[str] = Counter()
        for number in range(options.n):
            trial = odd_trial(np.random.default_rng([options.seed, GOALS.index(goal), number]), goal)
            with tempfile.TemporaryDirectory() as folder:
                found = run(trial, Path(folder))
            kind = found.partition(":")[0]
            counts[kind] += 1
            if kind in ("missed", "foreign") or (options.refused and kind == "refused"):
                print(f"{goal} {number}: {trial.words}: {found}", flush=True)
        wrong += counts["missed"] + counts["foreign"]
        print(f"{goal}: {dict(counts)}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
