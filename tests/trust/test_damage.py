"""No damage to a finished store is read in silence, and `verify` names every one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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
    rng = np.random.default_rng(STORES.index(store))
    assert [wrong for _ in range(12) for wrong in trial.run(store, rng)] == []
