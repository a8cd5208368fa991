"""Fits to two fields resume from checkpoints, with the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import CCA, MCA
from dpca.engine.sources.source import ZarrSource
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints


class Stopped(Exception):
    """As if the process had ended."""


@pytest.mark.parametrize(
    "model",
    [
        MCA(2, solver="covariance", random_state=0),
        MCA(2, solver="dual", random_state=0),
        CCA(2, solver="streaming", n_pca_modes=4, random_state=0, oversampling=2, batch_size=20),
    ],
    ids=["covariance", "dual", "streaming"],
)
def test_an_interrupted_fit_resumes(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    stored = [str(tmp_path / name) for name in "xy"]
    common = rng.normal(size=(240, 2))
    for path, d in zip(stored, (30, 20), strict=True):
        values = common @ rng.normal(size=(2, d)) + rng.normal(size=(240, d))
        zarr.create_array(path, data=values, chunks=(20, d // 2))
    expected = model.fit(*stored, run=Run(threads=1)).patterns()
    reads, limit = 0, 10**9
    reader = ZarrSource.reader

    def counted(source: ZarrSource) -> Any:
        read = reader(source)

        def one(*given: Any) -> None:
            nonlocal reads
            reads += 1
            if reads > limit:
                raise Stopped
            read(*given)

        return one

    monkeypatch.setattr(ZarrSource, "reader", counted)
    model.fit(*stored, run=Run(threads=1))
    whole, turns = reads, 0
    run = Run(threads=1, checkpoints=Checkpoints(str(tmp_path / "kept")))
    while True:  # each turn ends a little later in the fit
        reads, limit = 0, max(3, whole * (turns + 1) // 4)
        try:
            found = model.fit(*stored, run=run).patterns()
            break
        except Stopped:
            turns += 1
    assert turns >= 1
    for one, same in zip(found, expected, strict=True):
        assert one.tobytes() == same.tobytes()
