"""Damage of a compressed store is still detected after samples are appended, or after it is created again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpca.storage import StoreError, verify
from dpca.storage.integrity.manifest import carried_over
from dpca.storage.transaction.workspace import Workspace
from tests.trust.appends import APPENDED, AppendTrial, make_appendable


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> AppendTrial:
    make_appendable(folder := tmp_path_factory.mktemp("appendable"))
    return AppendTrial(folder, tmp_path_factory.mktemp("appended"))


@pytest.mark.cases(1)
@pytest.mark.parametrize("store", APPENDED)
def test_no_damage_is_vouched_for_by_an_append(store: str, trial: AppendTrial) -> None:
    """`tests/benchmarks/searches/damage_stores.py --append` tests more of these."""
    rng = np.random.default_rng(list(APPENDED).index(store))
    assert [wrong for _ in range(4) for wrong in trial.run(store, rng)] == []


@pytest.mark.parametrize("store", ["mean", "waves", "promised"])
def test_swapped_shards_are_refused(store: str, trial: AppendTrial) -> None:
    refused, deeper = trial.refused, "/0" if store == "waves" else ""
    assert trial.swap(store, f"codes/c/0{deeper}/0", f"codes/c/0{deeper}/1") == []
    assert trial.refused == refused + 1


def test_what_is_carried_over_keeps_its_entries(trial: AppendTrial, tmp_path: Path) -> None:
    """Files that were damaged since they were compared are damaged in the new store."""
    shutil.copytree(trial.whole / "kept.zarr", old := tmp_path / "out.zarr")
    facts = json.loads((old / "zarr.json").read_text())["attributes"]["dpca"]
    carried = carried_over(old, lambda name: not name.startswith("psnr/"))
    with Workspace(old, kind=facts["kind"], fingerprint="f", overwrite=True) as work:
        shutil.copytree(old, work.store, dirs_exist_ok=True, copy_function=os.link)
        one, two, gone, other = (
            work.store / name for name in ("codes/c/0/0", "codes/c/0/1", "cell", "stack/zarr.json")
        )
        one.rename(work.scratch / "x")
        two.rename(one)
        (work.scratch / "x").rename(two)
        shutil.rmtree(gone)
        described = work.store / "component" / "zarr.json"
        content = described.read_bytes()
        described.unlink()
        described.write_bytes(content + b" ")
        other.unlink()
        shutil.copyfile(trial.whole / "first-model.zarr" / "zarr.json", other)
        del facts["manifest"]
        (work.store / "zarr.json").unlink()
        root = {"zarr_format": 3, "node_type": "group", "attributes": {"dpca": facts | {"fingerprint": "f"}}}
        (work.store / "zarr.json").write_text(json.dumps(root))
        work.publish(carried)
    named = {problem.partition(":")[0] for problem in verify(old)}
    assert named >= {"codes/c/0/0", "codes/c/0/1", "cell/zarr.json", "component/zarr.json", "stack/zarr.json"}
    with pytest.raises(StoreError, match="manifest"):
        carried_over(trial.whole / "first.npy", lambda name: True)
