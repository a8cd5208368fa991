"""Reading a store while it is replaced returns the old or the new values, or raises `ReplacedError`."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

import dpca
from dpca.cli.running import known_error
from dpca.storage import ReplacedError, StoreError, open_stack
from dpca.storage.arrays.reading import open_array, open_group
from dpca.storage.disk import exchanged
from dpca.storage.integrity import replaced
from tests.trust.replaced import OPENED, READ, Replacement


@pytest.mark.parametrize("gap", [False, True], ids=["swapped", "two renames"])
@pytest.mark.parametrize("store", READ)
def test_no_reader_is_told_of_damage(store: str, gap: bool, made_twice: Path, tmp_path: Path) -> None:
    """Replace it before some accesses; `tests/benchmarks/searches/read_while_replaced.py` does so before each."""
    stores = Replacement(made_twice, tmp_path, store, gap=gap)
    for ways, opens in ((OPENED, True), (READ, False)):
        for way, read in ways.get(store, {}).items():
            n, expected = stores.accesses(read), stores.expected(read)
            wrong = {i: stores.wrong(read, i, opens=opens, expected=expected) for i in range(1, n + 1, n // 3)}
            assert not any(wrong.values()), (way, wrong)


def test_open_handles_say_that_the_store_was_replaced(stores: Path, made_twice: Path) -> None:
    path, new = stores / "compressed.zarr", made_twice / "b" / "compressed.zarr"
    opened, stack = dpca.open_compressed(path), open_stack(stores / "stack.zarr")
    sent = pickle.dumps((opened.stored("codes"), stack.samples))
    for name in ("compressed.zarr", "stack.zarr"):
        shutil.copytree(made_twice / "b" / name, stores / "new")
        exchanged(stores / "new", stores / name)
        shutil.rmtree(stores / "new")
    for read in (lambda: opened[3], lambda: opened.quality, lambda: stack.samples[3], lambda: pickle.loads(sent)):
        with pytest.raises(ReplacedError, match="again") as found:
            read()
    assert known_error(found.value) == (7, str(found.value))
    assert (dpca.open_compressed(path)[3] == dpca.open_compressed(new)[3]).all()


def test_damage_of_an_open_store_is_damage(stores: Path) -> None:
    path = stores / "compressed.zarr"
    group, opened = open_group(path), dpca.open_compressed(path)
    for name in ("codes/c/0/0", "mean/zarr.json"):
        (path / name).write_bytes((path / name).read_bytes()[:-1])
    for read in (lambda: opened[3], lambda: group["mean"], lambda: open_array(path / "mean")):
        with pytest.raises(StoreError) as found:
            read()
        assert not isinstance(found.value, ReplacedError)


def test_a_store_that_stays_away_is_told(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run was killed between the two renames, and its command is not run again."""
    monkeypatch.setattr(replaced, "_OPENINGS", 3)
    work = stores / "stack.zarr.partial"
    work.mkdir()
    (stores / "stack.zarr").rename(work / "replaced")
    with pytest.raises(ReplacedError, match="being"):
        open_stack(stores / "stack.zarr" / "samples")
