"""`dpca denoise` on a cluster: killed with SIGKILL in each pass, and with other chunks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import Denoiser, Run
from dpca.jobs import denoise_store
from dpca.storage import open_stack
from tests.helpers.forked import Programs
from tests.helpers.s3_server import content

pytestmark = pytest.mark.usefixtures("small_pictures")
PROGRAM = Path(__file__).with_name("denoise_to_kill.py")


def made(path: Path, chunks: tuple[int, ...], dtype: str) -> Path:
    """Write photons of two patterns, and return the path."""
    rng = np.random.default_rng(0)
    patterns = np.hanning(26)[1:-1, None] * np.hanning(22)[1:-1], np.linspace(0, 1, 24)[:, None] * np.ones(20)
    x = rng.poisson(40 + sum(np.outer(rng.uniform(0, 60, 80), one).reshape(80, 24, 20) for one in patterns))
    zarr.create_array(str(path), data=x.astype(dtype), chunks=chunks)
    return path


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (("--cell", "4", "--noise", "poisson"), "u2"),
        (("--cell", "8", "--noise", "rician"), "f4"),
        (("--cell", "4", "--time-filter"), "f4"),
    ],
)
def test_killed_in_each_pass(
    tmp_path: Path, programs: Programs, scheduler: str, given: tuple[str, ...], dtype: str
) -> None:
    """The first pass resumes with the groups of cells that are finished, and the second one with the shards."""
    source = made(tmp_path / "x.zarr", (16, 12, 10), dtype)

    def run(stage: str, n: int, target: Path) -> int | None:
        arguments = [str(source), str(target), *given, "--scheduler", scheduler]
        program = programs.start([sys.executable, str(PROGRAM), stage, str(n), *arguments])
        program.communicate()
        return program.returncode

    assert run("none", 1, tmp_path / "calm.zarr") == 0
    calm, target = content(tmp_path / "calm.zarr"), tmp_path / "killed.zarr"
    assert run("noise", 2, target) == -9
    finished = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed.zarr.partial").rglob("group-*.npz")}
    assert len(finished) >= 2
    assert run("denoise", 1, target) == -9
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert not target.exists()
    assert run("none", 1, target) == 0
    assert content(target) == calm


@pytest.mark.parametrize(
    ("noise", "cell", "in_time"),
    [("gaussian", 8, False), ("gaussian", 8, True), ("poisson", 6, False), ("rician", 6, False)],
)
def test_workers_and_other_chunks_give_the_same_values(
    tmp_path: Path, hidden_cluster: Any, noise: str, cell: int, in_time: bool
) -> None:
    """Fewer samples than attributes of a cell, more, a series in time, and magnitudes."""
    model, chunks = Denoiser(cell, noise=noise, time_filter=in_time), ((80, 24, 20), (1, 24, 20), (7, 5, 20))
    stacks = [made(tmp_path / f"{i}.zarr", shape, "f4") for i, shape in enumerate(chunks)]
    x = zarr.open_array(stacks[0])[...]
    expected = clone(model).fit(x, run=Run(threads=1))
    for stack in stacks:
        target = tmp_path / f"{stack.stem}-clean.zarr"
        denoise_store(open_stack(stack), target, model, run=Run(client=hidden_cluster))
        found = zarr.open_group(target, mode="r")
        np.testing.assert_allclose(found["samples"][...], expected.transform(x), rtol=1e-6)
        for name in ("sigma", "rank", "removed"):
            np.testing.assert_allclose(found[name][...], getattr(expected, f"{name}_"), rtol=1e-6, atol=1e-6)
