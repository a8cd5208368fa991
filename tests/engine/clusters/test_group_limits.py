"""Memory limits of control groups: of a job or service, and of a container, in which a group appears as the root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpca.storage.remote.memory import group_limits

_V1 = (
    "35 31 0:32 {root} {top} rw,relatime - cgroup cgroup rw,memory\n36 31 0:33 / {top}/../cpu rw - cgroup cgroup rw,cpu"
)
_V2 = "35 31 0:32 {root} {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("mounts", "cgroup", "root", "limits", "found"),
    [
        (_V2, "0::/", "/", {"memory.max": "max"}, []),
        (_V2, "0::/", "/", {"memory.max": "1000"}, [1000]),
        (_V2, "0::/a.slice/b.service", "/", {"a.slice/b.service/memory.max": "2000"}, [2000]),
        (
            _V2,
            "0::/a/b",
            "/",
            {"a/memory.max": "3000", "a/b/memory.max": "max", "a/b/memory.high": "2500"},
            [2500, 3000],
        ),
        # A container that shares the names of its host: what is mounted is its own group.
        (_V2, "0::/docker/x/job", "/docker/x", {"job/memory.max": "500", "memory.max": "700"}, [500, 700]),
        (_V2, "0::/../other", "/", {"memory.max": "700"}, [700]),
        (_V1, "5:cpu:/c\n4:memory:/slurm/job", "/", {"slurm/job/memory.limit_in_bytes": "900"}, [900]),
        (_V1, "4:hugetlb,memory:/j\n0::/", "/", {"j/memory.limit_in_bytes": "8", "memory.limit_in_bytes": "9"}, [8, 9]),
        (_V1, "nonsense", "/", {"memory.limit_in_bytes": "9"}, []),
    ],
)
def test_every_group_from_the_process_up_to_the_root_counts(
    tmp_path: Path, mounts: str, cgroup: str, root: str, limits: dict[str, str], found: list[int]
) -> None:
    top = tmp_path / "cgroup"
    for name, text in limits.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(f"{text}\n")
    (tmp_path / "mountinfo").write_text(mounts.format(root=root, top=top) + "\n")
    (tmp_path / "cgroup-of-process").write_text(cgroup)
    proc = tmp_path / "proc"
    proc.mkdir()
    (tmp_path / "mountinfo").rename(proc / "mountinfo")
    (tmp_path / "cgroup-of-process").rename(proc / "cgroup")
    assert group_limits(proc) == found


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert group_limits(tmp_path) == []


@pytest.mark.long
def test_a_process_in_a_small_group_plans_with_its_limit() -> None:
    group = Path("/sys/fs/cgroup/memory") / f"dpca-test-{os.getpid()}"
    if not (group.parent / "memory.limit_in_bytes").exists():
        group = group.parents[1] / group.name
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        name = "memory.limit_in_bytes" if group.parent.name == "memory" else "memory.max"
        try:
            (group / name).write_text("1500000000")
        except OSError:
            pytest.skip("the memory of a control group cannot be limited here")
        code = "from dpca.storage.remote.memory import usable_bytes; print(usable_bytes())"
        inside = f'echo $$ > {group}/cgroup.procs && exec "$0" -c "$1"'
        told = subprocess.run(["sh", "-c", inside, sys.executable, code], capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stderr
        assert 0 < int(told.stdout) < 1e9
    finally:
        group.rmdir()
