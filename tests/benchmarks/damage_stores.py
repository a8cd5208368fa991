"""Damage finished stores in thousands of ways and read them in every public way.

    python tests/benchmarks/damage_stores.py --n 2000 --seed 0

prints every damage that ``verify`` does not name, and every way of reading that gives other values in silence or ends
in something else than a sentence; then how many there were.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dpca.engine.cluster import open_client
from tests.trust.damage import STORES, make_stores
from tests.trust.ways import Trial


def main() -> int:
    """Run the series; return 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stores", nargs="*", default=STORES)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        made.mkdir()
        with open_client(workers=1, memory="1GB") as client:
            make_stores(made, client)
        trial = Trial(made, Path(folder) / "damaged")
        counts: Counter[str] = Counter()
        wrong = []
        for turn in range(options.n):
            store = options.stores[turn % len(options.stores)]
            found = trial.run(store, rng)
            counts[store] += 1
            wrong += found
            for sentence in found:
                print(sentence, flush=True)
    print(f"{options.n} damages: {dict(counts)}; {len(wrong)} not told")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
