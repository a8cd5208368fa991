"""A program that fits shared cells by blocks, slowly, for `test_shared_blocks` to kill.

``python shared_to_kill.py STORE CHECKPOINTS OUTPUT SECONDS_A_BLOCK`` prints the number of blocks, and how many were
finished when it started.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from dpca import CellPCA
from dpca.rules.base.state import State
from dpca.rules.covariance.pooled_covariance import PooledBlocks
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


def main() -> None:
    store, folder, output, seconds = sys.argv[1:]
    n_folded, finish = [], PooledBlocks._finish

    def slow_finish(rule: PooledBlocks, state: State) -> dict[str, np.ndarray]:
        time.sleep(float(seconds))
        n_folded.append(1)
        return finish(rule, state)

    PooledBlocks._finish = slow_finish  # type: ignore[method-assign]
    run = Run(checkpoints=Checkpoints(folder), threads=1)
    model = CellPCA(3, cell_shape=12, shared=True, memory_budget=33 * 10**6).fit(store, run=run)
    names = ("components_", "mean_", "explained_variance_", "total_variance_", "ranks_")
    np.savez(output, **{name: getattr(model, name) for name in names})
    n_blocks = sum(len(group.partitions) for group in model.fit_report_.plan.groups)
    print(n_blocks, n_blocks - len(n_folded))


if __name__ == "__main__":
    main()
