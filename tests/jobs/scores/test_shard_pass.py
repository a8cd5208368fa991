"""A pass over shards on a cluster: short shards share tasks, and every shard is written and marked once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpca.jobs.base.shards
from dpca.jobs.base.shards import ShardPass
from dpca.kernels.algebra.types import Array
from dpca.storage.remote.tasks import map_shards
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import Workspace


@dataclass(frozen=True)
class Files:
    """A job that writes a file for each shard, and notes when the task began."""

    folder: Path
    seconds: float = 0.0
    fails: int = -1

    def span(self, shard: int) -> tuple[int, int]:
        return 10 * shard, 10 * shard + 10

    def write(self, shard: int) -> dict[str, Array]:
        if shard == self.fails:
            raise RuntimeError(f"shard {shard}")
        time.sleep(self.seconds)
        with open(self.folder / f"{shard}", "x"):  # fails if it is written twice
            return {"mse": np.full(10, shard, np.float32)}


@pytest.mark.parametrize(("seconds", "n"), [(0.0, 300), (0.15, 12)])
def test_only_short_shards_share_tasks(
    seconds: float, n: int, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def note(units: list[Any], length: int, call: Any) -> Any:
        sizes.append(len(units))
        return units, length, call

    def noted(function: Any, shards: Any, *arguments: Any, **options: Any) -> Any:
        return map_shards(function, starmap(note, shards), *arguments, **options)

    monkeypatch.setattr(dpca.jobs.base.shards, "map_shards", noted)
    (tmp_path / "files").mkdir()
    with Workspace(tmp_path / "out.zarr", kind="scores", fingerprint="1") as work:
        shards = ShardPass("scores", work, Run(client=cluster))
        shards.write(Files(tmp_path / "files", seconds), ((i,) for i in range(n)))
        assert [int(shards.quality(i)["mse"][0]) for i in range(n)] == list(range(n))
    assert sum(sizes) == n
    # No task has more shards than each of the two workers has written on average.
    assert all(size <= max(1, sum(sizes[:i]) // 2) for i, size in enumerate(sizes))
    assert len(list((tmp_path / "files").iterdir())) == n
    # Tasks of two workers take at least 0.1 s. The first ones are short until the time of a shard is known.
    assert (max(sizes) > 1, len(sizes) < n) == (not seconds, not seconds)


def test_shards_of_earlier_tasks_stay_marked_if_one_fails(tmp_path: Path, cluster: Any) -> None:
    (tmp_path / "files").mkdir()
    with Workspace(tmp_path / "out.zarr", kind="scores", fingerprint="1") as work:
        shards = ShardPass("scores", work, Run(client=cluster))
        with pytest.raises(RuntimeError, match="50"):
            shards.write(Files(tmp_path / "files", fails=50), ((i,) for i in range(60)))
        marked = [i for i in range(60) if work.is_done(f"scores shard {i}")]
        assert marked == list(range(len(marked)))
        assert 0 < len(marked) <= 50
        for i in range(len(marked), 60):
            (tmp_path / "files" / f"{i}").unlink(missing_ok=True)
        shards.write(Files(tmp_path / "files"), ((i,) for i in range(60)))
        assert [int(shards.quality(i)["mse"][0]) for i in range(60)] == list(range(60))
