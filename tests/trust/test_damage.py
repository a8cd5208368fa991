"""Damage to a finished store is never read silently, and `verify` reports all of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dpca.storage import StoreError, open_stack
from tests.trust.damage import STORES
from tests.trust.ways import Trial


@pytest.fixture(scope="module")
def trial(made_twice: Path, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial(made_twice, tmp_path_factory.mktemp("damaged"))


def test_whole_stores_are_read_in_every_way(trial: Trial) -> None:
    wrong = {f"{s}: {w}": r for s, ways in trial.expected.items() for w, r in ways.items() if isinstance(r, Exception)}
    assert not wrong


@pytest.mark.parametrize("store", STORES)
def test_damage_is_named_and_never_read(store: str, trial: Trial) -> None:
    """Six ways for each store, all ways over all stores; `tests/benchmarks/searches/damage_stores.py` tests more."""
    rng = np.random.default_rng(STORES.index(store))
    assert [wrong for _ in range(6) for wrong in trial.run(store, rng)] == []
    assert len(trial.used[store]) == 6


def test_root_metadata_of_another_file_is_no_other_store(trial: Trial, tmp_path: Path) -> None:
    whole = trial.whole / "stack.zarr"
    for name in sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()):
        shutil.rmtree(here := tmp_path / "stack.zarr", ignore_errors=True)
        shutil.copytree(whole, here)
        if name != "zarr.json":
            shutil.copyfile(whole / name, here / "zarr.json")
            with pytest.raises(StoreError, match="metadata"):
                open_stack(here)
