"""What a report shows of a store of scores."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from dpca.jobs.report import worst_first

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
