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
from dpca.models.base import store
from dpca.plots.given import worst_first
from dpca.storage import ingest
from tests.conftest import smooth_images


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


def test_commands_estimators_and_the_main_job_import_slow_libraries_only_to_use_them_and_no_study() -> None:
    run(
        "import sys, dpca.cli.commands, dpca.cli.model_commands, dpca.cli.jobs, dpca.models, dpca.report.record\n"
        "slow = {'matplotlib', 'numba', 'scipy.signal', 'sklearn.cluster', 'dpca.pipelines'}\n"
        "assert not slow & sys.modules.keys(), slow & sys.modules.keys()"
    )


def test_commands_that_compute_nothing_import_no_library_that_computes(tmp_path: Path, scheduler: str) -> None:
    np.save(tmp_path / "a.npy", smooth_images(4))
    ingest(tmp_path / "a.npy", tmp_path / "s.zarr")
    run(
        "import sys; from dpca.cli import main\n"
        "def ends(code, *argv):\n"
        "    try: assert main(argv) == code, argv\n"
        "    except SystemExit as end: assert end.code == code, argv\n"
        "    return set(sys.modules)\n"
        "for argv in ['--help'], ['fit', '--help']: imported = ends(0, *argv)\n"
        "for argv in [], ['nonsense'], ['fit', 'a', 'b']: imported = ends(2, *argv)\n"
        "assert not imported & {'numpy', 'zarr', 'dask', 'dpca.storage'}, imported\n"
        f"imported = ends(0, 'info', {str(tmp_path / 's.zarr')!r}) | ends(3, 'info', {str(tmp_path / 'none')!r})\n"
        "assert 'zarr' in imported and not imported & {'dask', 'distributed'}, imported\n"
        f"imported = ends(0, 'verify', {str(tmp_path / 's.zarr')!r}, '--scheduler', {scheduler!r})\n"
        "assert 'distributed' in imported, imported\n"
        "assert not imported & {'sklearn', 'scipy', 'numba', 'skimage', 'matplotlib', 'dpca.pipelines'}, imported\n"
    )


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
