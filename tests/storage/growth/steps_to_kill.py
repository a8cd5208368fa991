"""A simulation and its follower, for tests to kill: ``write TARGET N SECONDS`` and ``follow TARGET MODEL``."""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

SHAPE = (6, 5)


def step(t: int) -> NDArray[np.float32]:
    """Return a step with its number in every value."""
    values = np.random.default_rng(t).normal(size=SHAPE).astype(np.float32)
    values[0, 0] = t + 1
    return values


def write(target: str, n: int, seconds: float) -> None:
    from dpca.storage import Appender

    with Appender(target, SHAPE, np.float32, chunk_samples=4) as steps:
        for t in range(steps.n_samples, n):
            steps.append(step(t))
            time.sleep(seconds)


def follow(target: str, model: str) -> None:
    import dpca

    found = dpca.StreamingPCA(3, method="incremental-svd", oversampling=2, batch_size=7, keep_state=True)
    for _ in dpca.follow(target, found, checkpoint=model, save_every=0.1, poll=0.01, patience=60):
        pass


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        follow(sys.argv[2], sys.argv[3])
