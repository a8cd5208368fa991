"""What a report shows of a store of scores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpca import CellPCA, StreamingPCA
from dpca.jobs import transform_store
from dpca.jobs.report import worst_first
from dpca.models import store
from storage import ingest
from tests.conftest import smooth_images

NO_DRAWING = "assert not {m.split('.')[0] for m in sys.modules} & {'matplotlib', 'pipelines'}"


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("quality", "order"),
    [
        ({"mse": [1, 2, 3, 4], "ssim": [0.9, 0.5, 0.7, 0.5]}, [1, 3, 2, 0]),
        ({"mse": [1, 9, 3, 9]}, [1, 3, 2, 0]),
    ],
)
def test_the_worst_come_first_by_ssim_or_else_by_squared_error(quality: dict[str, Any], order: list[int]) -> None:
    assert worst_first({name: np.array(values) for name, values in quality.items()}).tolist() == order


def test_no_command_imports_matplotlib_or_a_study() -> None:
    run(
        "import sys; from dpca.cli.program import run\n"
        "for argv in (['transform', '--help'], ['verify', '--help'], ['info', 'nothing.zarr']):\n"
        "    try: run(argv)\n"
        "    except SystemExit: pass\n" + NO_DRAWING
    )


def test_the_main_job_imports_matplotlib_only_to_draw() -> None:
    run("import sys; import dpca.cli.jobs, dpca.report.record\n" + NO_DRAWING)


@pytest.mark.parametrize(
    "estimator", [CellPCA(2, cell_shape=4), StreamingPCA(2, random_state=0)], ids=["cells", "whole"]
)
def test_a_transform_reads_the_model_once(
    tmp_path: Path, estimator: CellPCA | StreamingPCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", smooth_images(20, (12, 12)))
    stack = ingest(tmp_path / "a.npy", tmp_path / "s.zarr")
    estimator.fit(stack).save(tmp_path / "m.zarr")
    reads: list[Any] = []
    load = store.load_any

    def counted(path: Any) -> Any:
        reads.append(path)
        return load(path)

    monkeypatch.setattr(store, "load_any", counted)
    store.stored_basis.cache_clear()
    transform_store(stack, tmp_path / "m.zarr", tmp_path / "scores.zarr")
    assert len(reads) == 1
