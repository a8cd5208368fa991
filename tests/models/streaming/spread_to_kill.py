"""A program that fits a basis spread over two workers, slowly, for `test_spread_kill` to kill.

``python spread_to_kill.py STORE CHECKPOINTS OUTPUT SECONDS_AN_UPDATE`` prints the processes of the workers, and in the
end the error or the number of samples that it read.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from dpca.engine.clusters.cluster import open_client
from dpca.engine.folds import spread
from dpca.engine.folds.spread import spread_fold
from dpca.engine.sources.source import as_source
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.rules.base.watched import Watched
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.storage.errors import ClusterError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


def slow_down(seconds: float) -> None:
    """Let every update take time, and read a chunk at a time."""
    update = InBatches.update

    def slow_update(rule: Any, state: State, batch: np.ndarray) -> State:
        time.sleep(seconds)
        return update(rule, state, batch)

    InBatches.update = slow_update  # type: ignore[method-assign]


def main() -> None:
    store, folder, output, seconds = sys.argv[1:]
    spread.CHECKPOINT_BYTES, spread._READ_FOR_EACH = 1, 0
    InBatches.batch_rows = lambda rule, dtype: 16  # type: ignore[method-assign]
    rule: Any = InBatches(Sampled(Watched(IncrementalSVD(3), 600)), 10, chain=True)
    with open_client(workers=2, memory="1.5GB") as client:
        client.run(slow_down, float(seconds))
        print(*client.run(os.getpid).values(), flush=True)
        n_read: list[int] = []
        resume = spread._SpreadFold._resume
        spread._SpreadFold._resume = lambda fold: (resume(fold), n_read.append(600 - fold.at))[0]  # type: ignore[method-assign]
        try:
            found, _ = spread_fold(rule, as_source(store), run=Run(client=client, checkpoints=Checkpoints(folder)))
        except ClusterError as error:
            print(f"ClusterError: {error}", flush=True)
            return
        np.savez(output, **found)
        print(n_read[0], flush=True)


if __name__ == "__main__":
    main()
