"""Damage finished stores in thousands of ways, and read them in every public way or append to them.

    python tests/benchmarks/searches/damage_stores.py --n 2000 --seed 0
    python tests/benchmarks/searches/damage_stores.py --n 2000 --seed 0 --append

The first prints every damage that ``verify`` does not name, and every way of reading that gives other values in silence
or ends in something else than a sentence. With ``--append`` samples are appended to damaged compressed stores, or all
are fitted again: it prints every store that is told as whole then and is not, every value that is read in silence and
is another one, and every refused append that changed the store. Then how many there were.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from dpca.engine.clusters.cluster import open_client
from tests.trust.appends import APPENDED, AppendTrial, make_appendable
from tests.trust.damage import STORES, make_stores
from tests.trust.ways import Trial


def main() -> int:
    """Run the series; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--append", action="store_true", help="append to compressed stores instead of reading all")
    parser.add_argument("--stores", nargs="*", help="these only (default: all)")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        (made := Path(folder) / "made").mkdir()
        trial: Trial | AppendTrial
        if options.append:
            os.fsync = lambda handle: None  # type: ignore[assignment] # no power is cut here
            make_appendable(made)
            trial = AppendTrial(made, Path(folder) / "damaged")
        else:
            with open_client(workers=1, memory="1GB") as client:
                make_stores(made, client)
            trial = Trial(made, Path(folder) / "damaged")
        stores = options.stores or list(APPENDED if options.append else STORES)
        counts: Counter[str] = Counter()
        wrong = []
        for turn in range(options.n):
            store = stores[turn % len(stores)]
            found = trial.run(store, rng)
            counts[store] += 1
            wrong += found
            for sentence in found:
                print(sentence, flush=True)
    if isinstance(trial, AppendTrial):
        print(f"{trial.refused} appends were refused, {trial.accepted} accepted")
    print(f"{options.n} damages: {dict(counts)}; {len(wrong)} not told")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
