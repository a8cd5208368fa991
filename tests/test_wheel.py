"""What an installed dpca is: a wheel holds the package with its links followed, its types, and no other name."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import dpca

ROOT = Path(__file__).parents[1]
pytest.importorskip("setuptools", minversion="77", reason="older ones do not know how this project states its licence")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project: building leaves folders beside what is built."""
    copy = tmp_path / "dpca"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in ("dpca", "storage", "pipelines"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def built(copy: Path, what: str) -> Path:
    """Build a wheel or an sdist; return its file."""
    build = f"from setuptools import build_meta; build_meta.build_{what}('..')"
    ended = subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    (found,) = copy.parent.glob("*.whl" if what == "wheel" else "*.tar.gz")
    return found


@pytest.mark.long
def test_an_sdist_holds_files_instead_of_links_and_builds_the_same_wheel(copy: Path) -> None:
    sdist = built(copy, "sdist")
    with tarfile.open(sdist) as opened:
        members = opened.getmembers()
        opened.extractall(copy.parent / "unpacked", filter="data")
    assert not [one.name for one in members if one.issym() or one.islnk()]
    top = {one.name.split("/")[1] for one in members if "/" in one.name}
    assert top == {"LICENSE", "PKG-INFO", "README.md", "dask_dpca.egg-info", "dpca", "pyproject.toml", "setup.cfg"}
    (unpacked,) = (copy.parent / "unpacked").iterdir()
    wheels = [built(copy, "wheel")]
    (copy.parent / "again").mkdir()
    unpacked.rename(copy.parent / "again" / "dpca")
    wheels.append(built(copy.parent / "again" / "dpca", "wheel"))
    contents = [zipfile.ZipFile(wheel).namelist() for wheel in wheels]
    assert sorted(contents[0]) == sorted(contents[1])
    if importlib.util.find_spec("twine") is not None:
        checked = [sys.executable, "-m", "twine", "check", "--strict", sdist, *wheels]
        ended = subprocess.run(checked, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout


def test_the_version_is_stated_alike() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert stated["version"] == dpca.__version__
    assert f"version: {dpca.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {dpca.__version__}\n" in (ROOT / "CHANGELOG.md").read_text()
    pythons = [name.rpartition(" ")[2] for name in stated["classifiers"] if " :: 3." in name]
    workflow = (ROOT / ".ci" / "workflow.yaml").read_text()
    assert f"python: {str(pythons).replace(chr(39), chr(34))}" in workflow
    assert f"| Python | {', '.join(pythons)} |" in (ROOT / "docs" / "upgrades.md").read_text()


@pytest.mark.long
def test_what_a_wheel_holds(copy: Path) -> None:
    wheel = built(copy, "wheel")
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
