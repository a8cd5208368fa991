"""Scores of fields, whatever the size of the tasks that project them, on workers and in threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import EOF
from dpca.models.eof import projection
from dpca.storage import DataError
from dpca.storage.run import Run
from tests.models.eof.sea import LON, SST

SEA = SST.notnull().all("time").values
N = len(SST)


def truth(k: int) -> np.ndarray:
    """Return the time series (N, k) of the leading modes, up to signs."""
    rows = SST.values[:, SEA]
    left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    return (left * values)[:, :k]


@pytest.mark.parametrize("size", [1, 2**14, 2**28])
@pytest.mark.parametrize("where", ["workers", "threads"])
def test_tasks_of_any_size_project_the_same_scores(
    where: str, size: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(client=request.getfixturevalue("cluster")) if where == "workers" else Run()
    path = str(tmp_path / "sst.zarr")
    stored = zarr.create_array(path, data=SST.values, chunks=(10, 3, LON))
    eof = EOF(3).fit(path, run=run)
    monkeypatch.setattr(projection, "_TASK_BYTES", size)
    monkeypatch.setattr(projection, "_BLOCK_BYTES", size)
    series = truth(3)
    for found in (eof.pcs(), eof.project(path), eof.project(SST.values)):
        signs = np.sign(np.sum(found * series, axis=0))
        np.testing.assert_allclose(found * signs, series, atol=1e-6 * np.abs(series).max())
    stored[33, *np.argwhere(SEA)[0]] = np.nan
    with pytest.raises(DataError, match="finite") as caught:
        eof.project(path)
    assert "sample 33" in str(caught.value)


@pytest.mark.parametrize("gaps", ["interpolate", "iterate"])
def test_workers_fill_gaps_across_the_borders_of_tasks(
    gaps: str, tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = SST.values.copy()
    values[28:33, *np.argwhere(SEA)[3]] = np.nan  # tasks end at 30
    values[0, *np.argwhere(SEA)[5]] = np.nan
    path = str(tmp_path / "sst.zarr")
    zarr.create_array(path, data=values, chunks=(10, 3, LON))
    monkeypatch.setattr(projection, "_TASK_BYTES", 1)
    eof = EOF(3, gaps=gaps).fit(path, run=Run(client=cluster))
    expected = EOF(3, gaps=gaps).fit(values)
    assert not np.isnan(eof.pcs()).any()
    np.testing.assert_allclose(eof.pcs(), expected.pcs(), atol=1e-6 * np.abs(expected.pcs()).max())
