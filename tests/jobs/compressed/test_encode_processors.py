"""A compressed store that one processor begins and another one finishes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dpca
from dpca import CellPCA
from dpca.jobs import encode_store
from dpca.storage import verify
from tests.conftest import smooth_images
from tests.helpers.core_types import environment, taken, usable
from tests.jobs.compressed import encode_elsewhere
from tests.jobs.compressed.test_encode import stack_of
from tests.storage.sources.made_sources import contents

N, PROMISED = 800, 8.0
# Of how many codes one may be another: those of scores that lie, up to rounding, halfway between two.
ONE_IN = 10_000


@pytest.mark.programs
def test_what_another_processor_began_is_finished_to_the_same_store_up_to_rounding(tmp_path: Path) -> None:
    others = [name for name in usable(("Prescott", "Haswell")) if name not in taken()]
    if not others:
        pytest.skip("this is no x86-64")
    images = smooth_images(N, (24, 20))
    stack = stack_of(tmp_path, images)
    CellPCA(30, cell_shape=8, overlap=4, shared=True).fit(stack).save(tmp_path / "model.zarr")
    resume_from, calm = tmp_path / "begun.zarr", tmp_path / "calm.zarr"

    def there(target: Path, *kill: str) -> int:
        given: list[Any] = [stack.path, tmp_path / "model.zarr", target, PROMISED, *kill]
        command = [sys.executable, encode_elsewhere.__file__, *map(str, given)]
        return subprocess.run(command, env=environment(others[0]), capture_output=True).returncode

    assert there(resume_from, "kill") == -signal.SIGKILL
    assert there(calm) == 0
    encode_store(stack, tmp_path / "model.zarr", resume_from, max_error=PROMISED)
    assert verify(resume_from) == []
    found, expected = contents(resume_from), contents(calm)
    # What was chosen, and the shard that was there, have the bits of the other processor.
    ours = {"codes/c/0/1", "residual/c/1/0/0", *(f"{name}/c/0" for name in ("mse", "psnr", "ssim", "max_error"))}
    assert {name for name in found if "/c/" in name and found[name] != expected[name]} <= ours
    assert ours < found.keys()
    codes = [zarr.open_array(str(store / "codes"))[...].astype(int) for store in (resume_from, calm)]
    assert np.abs(codes[0] - codes[1]).max() <= 1
    assert (codes[0] != codes[1]).mean() <= 1 / ONE_IN
    assert np.abs(dpca.open_compressed(resume_from)[...].astype(int) - images).max() <= PROMISED
