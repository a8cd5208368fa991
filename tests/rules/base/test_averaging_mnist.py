"""Averaged streams on MNIST: about as good as one stream (Amid & Warmuth 2020, table 2)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpca.rules import ImplicitKrasulina, Power
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from tests.rules.streams import lost_variance

STREAMS, ROUND = 5, 200


@pytest.fixture(scope="module")
def digits(real_data: Path) -> np.ndarray:
    """12,000 images in random order, pixels in [0, 1]."""
    raw = gzip.decompress((real_data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    x = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)
    order = np.random.default_rng(0).permutation(len(x))[:12_000]
    return x[order] / np.float32(255)


def averaged(rule: InBatches, x: np.ndarray) -> State:
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), STREAMS * ROUND):
        parts = np.split(x[start : start + STREAMS * ROUND], STREAMS)
        state = rule.average(state, [rule.update(state.copy(), part) for part in parts])
    return state


@pytest.mark.long
def test_five_streams_lose_about_as_little_as_one(digits: np.ndarray) -> None:
    rule = InBatches(ImplicitKrasulina(5, Power(1.0, 0.8), unit=1.0), 10)
    alone = rule.finish(rule.update(rule.init(784, np.float32), digits))
    found = rule.finish(averaged(rule, digits))
    lost = lost_variance(found["components"], digits)
    assert lost < 0.02
    assert lost < 2 * lost_variance(alone["components"], digits) + 0.005
    assert float(found["total_variance"]) == pytest.approx(float(alone["total_variance"]), rel=1e-6)
