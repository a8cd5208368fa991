"""A program that fits a streaming PCA, slowly, for `test_streaming_kill` to kill.

``python fit_to_kill.py STORE CHECKPOINTS METHOD OUTPUT SECONDS_AN_UPDATE WORKERS`` prints in the end the number of
segments. With workers it makes the same fit before, at full speed and without checkpoints, leaves what that finds in
OUTPUT.calm.npz, and prints the processes of the workers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

import dpca.engine.folds.plan
from dpca import StreamingPCA
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


def slow_down(seconds: float) -> None:
    """Let every update take time, and plan segments of a few chunks."""
    dpca.engine.folds.plan.LINK_BYTES = dpca.engine.folds.plan.SEGMENT_BYTES = 4 * 16 * 60
    update = InBatches.update

    def slow_update(rule: Any, state: State, batch: np.ndarray) -> State:
        time.sleep(seconds)
        return update(rule, state, batch)

    InBatches.update = slow_update  # type: ignore[method-assign]
    InBatches.batch_rows = lambda rule, dtype: 16  # type: ignore[method-assign]


def fit(store: str, method: str, output: str, **where: Any) -> StreamingPCA:
    """Fit a model and save its results."""
    model = StreamingPCA(3, method=method, batch_size=10, shuffle=True, random_state=1, n_passes=2)
    model.fit(store, **where)
    np.savez(
        output,
        components=model.components_,
        mean=model.mean_,
        variances=model.explained_variance_,
        facts=np.array([model.total_variance_, model.angle_moved_, model.n_samples_seen_]),
    )
    return model


def main() -> None:
    store, folder, method, output, seconds, workers = sys.argv[1:]
    if int(workers):
        from dpca.engine.clusters.cluster import open_client

        with open_client(workers=int(workers), memory="1.5GB") as client:
            slow_down(0)
            client.run(slow_down, 0)
            fit(store, method, f"{output}.calm.npz", run=Run(client=client))
            client.run(slow_down, float(seconds))
            print(*client.run(os.getpid).values(), flush=True)
            model = fit(store, method, output, run=Run(client=client, checkpoints=Checkpoints(folder)))
    else:
        slow_down(float(seconds))
        model = fit(store, method, output, run=Run(checkpoints=Checkpoints(folder)))
    print(len(model.fit_report_.plan.segments), flush=True)


if __name__ == "__main__":
    main()
