"""Checkpoints are found if, and only if, the work is the same."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr

from dpca.engine.folds.fold import fold
from dpca.engine.folds.identity import digest
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import as_source
from dpca.partition import Whole
from dpca.rules import Harmonic, IncrementalSVD, Oja
from dpca.rules.base.minibatch import InBatches
from dpca.rules.covariance.covariance_product import Refinement
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


def components(seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 2)))[0].T


@dataclass(frozen=True)
class Noted(Oja):
    note: str = field(default="", compare=False)


ALIKE: list[tuple[Any, Any]] = [
    (Oja(2, seed=1), Oja(2, seed=1)),
    (Refinement(components(), np.zeros(6)), Refinement(components(), np.zeros(6))),
    (as_source(np.arange(12).reshape(4, 3)), as_source(np.arange(12).reshape(4, 3))),
    (as_source(da.from_array(np.ones((8, 3)))), as_source(da.from_array(np.ones((8, 3))))),
    (Whole((2, 3)), Whole((2, 3))),
    (Noted(2, note="first"), Noted(2, note="second")),
    ({"a": 1, "b": [2.0, None]}, {"b": [2.0, None], "a": 1}),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (Oja(2, seed=1), Oja(2, seed=2)),
    (Oja(2), Oja(2, Harmonic(2.0), unit=1.0)),
    (Oja(2), IncrementalSVD(2)),
    (InBatches(Oja(2), 10), InBatches(Oja(2), 20)),
    (Refinement(components(), np.zeros(6)), Refinement(components(1), np.zeros(6))),
    (Refinement(components(), np.zeros(6)), Refinement(components(), np.ones(6))),
    (as_source(np.arange(12).reshape(4, 3)), as_source(np.arange(12).reshape(3, 4))),
    (as_source(np.zeros((4, 3), np.float32)), as_source(np.zeros((4, 3), np.int32))),
    (as_source(da.from_array(np.ones((8, 3)))), as_source(da.from_array(np.zeros((8, 3))))),
    (shuffle(as_source(np.ones((8, 3))), 1), shuffle(as_source(np.ones((8, 3))), 2)),
    (shuffle(as_source(np.ones((8, 3))), 1), as_source(np.ones((8, 3)))),
    (["ab", "c"], ["a", "bc"]),
]


@pytest.mark.parametrize(("a", "b"), ALIKE)
def test_the_same_has_one_key(a: Any, b: Any) -> None:
    assert digest(a) == digest(b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_what_differs_has_another(a: Any, b: Any) -> None:
    assert digest(a) != digest(b)


def test_a_store_written_anew_is_another_one(tmp_path: Path) -> None:
    path = str(tmp_path / "x.zarr")
    zarr.create_array(path, data=np.zeros((4, 3)), chunks=(2, 3))
    before = digest(as_source(path))
    assert digest(as_source(path)) == before
    os.utime(tmp_path / "x.zarr" / "zarr.json", ns=(1, 1))
    assert digest(as_source(path)) != before


def test_one_folder_serves_many_fits_and_mixes_none(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(60, 6)) for _ in range(2))
    kept = Checkpoints(str(tmp_path / "kept"))
    for rule in (InBatches(Oja(2, seed=1), 20), InBatches(Oja(2, seed=2), 20), InBatches(IncrementalSVD(2), 20)):
        for x in (first, second):
            alone = fold(rule, as_source(x), Whole((6,)))[0][0]
            for _ in range(2):
                found = fold(rule, as_source(x), Whole((6,)), run=Run(checkpoints=kept))[0][0]
                np.testing.assert_array_equal(found["components"], alone["components"])
    assert len(list((tmp_path / "kept").iterdir())) == 6
