"""The skeleton of jobs: what an error leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpca.storage.transaction.job import Job


@pytest.mark.parametrize(("discard_on", "left"), [((), ["a.zarr.partial"]), ((LookupError,), [])])
def test_an_error_after_which_no_run_can_resume_leaves_no_files(
    tmp_path: Path, discard_on: tuple[Any, ...], left: list[str]
) -> None:
    def steps(work: Any) -> None:
        (work.scratch / "checkpoint").write_text("half")
        work.mark_done("shard 0")
        raise LookupError("unmet")

    with pytest.raises(LookupError):
        Job(tmp_path / "a.zarr", "stack", "f", discard_on=discard_on).run(steps)
    assert [entry.name for entry in tmp_path.iterdir()] == left
