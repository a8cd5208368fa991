"""What an installed dpca is: a wheel holds the package with its links followed, its types, and no other name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("setuptools", minversion="77", reason="older ones do not know how this project states its licence")


@pytest.mark.long
def test_what_a_wheel_holds(tmp_path: Path) -> None:
    # A copy: building leaves folders beside what is built.
    copy = tmp_path / "dpca"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in ("dpca", "storage", "pipelines"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    ended = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    metadata = wheel.name.partition("-py3")[0] + ".dist-info"
    assert {name.partition("/")[0] for name in names} == {"dpca", metadata}
    modules = {
        path.relative_to(copy).as_posix()
        for room in ("dpca", "dpca/storage", "dpca/pipelines")
        for path in (copy / room).rglob("*.py")
    }
    folders = ("explore/static", "explore/templates", "report/templates")
    page = {f"dpca/{folder}/{path.name}" for folder in folders for path in (copy / "dpca" / folder).iterdir()}
    assert {name for name in names if name.startswith("dpca/")} == {*modules, *page, "dpca/py.typed"}
    assert {"dpca/storage/ingest.py", "dpca/pipelines/celeba_cpca.py"} <= modules
    assert f"{metadata}/licenses/LICENSE" in names
