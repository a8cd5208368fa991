"""What an installed dpca is: a wheel runs; it holds the package with its links followed, its types, no other name."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

import dpca
from tests.conftest import write_images

ROOT = Path(__file__).parents[1]
pytest.importorskip("setuptools", minversion="77", reason="older ones do not know how this project states its licence")

#: Prints what is imported where dpca is installed.
IMPORTED = """
import json, sys
import dpca, dpca.storage, dpca.pipelines.celeba_cpca
loaded = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "dpca"]
print(json.dumps(loaded))
"""


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


def readme_block(heading: str) -> str:
    """Return the first block of code below a heading of README.md."""
    below = (ROOT / "README.md").read_text().split(f"\n## {heading}\n")[1]
    return below.split("\n```")[1].partition("\n")[2]


@pytest.fixture
def installed(copy: Path, tmp_path: Path) -> Path:
    """The folder of programs of a new environment with the wheel, which sees the libraries of this one."""
    pytest.importorskip("pip", minversion="22.3", reason="older ones install into no other environment")
    venv.create(tmp_path / "env", symlinks=True)
    programs = tmp_path / "env" / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", programs / "python", "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", built(copy, "wheel")], check=True)
    # Python does not follow the links to checkouts in folders that a link names.
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(libraries))
    shutil.rmtree(copy)
    return programs


@pytest.mark.programs
def test_an_installed_wheel_runs_the_first_commands_of_the_readme(installed: Path, tmp_path: Path) -> None:
    here = tmp_path / "elsewhere"
    here.mkdir()
    write_images(here / "photos", 24, (40, 40, 3))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}

    def run(program: str, *arguments: str) -> str:
        command = [installed / program, *arguments]
        ended = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{program} {shlex.join(arguments)}: {ended.stderr}"
        return ended.stdout

    (package,) = installed.parent.glob("lib/python*/site-packages/dpca")
    loaded = json.loads(run("python", "-c", IMPORTED))
    assert len(loaded) > 9
    assert all(Path(file).is_relative_to(package) for file in loaded)
    assert not [path for path in (package, *package.rglob("*")) if path.is_symlink()]

    assert f"dpca {dpca.__version__}" in run("dpca", "--version")
    lines = readme_block("Your own data").splitlines()
    assert [line.split()[1] for line in lines] == ["compress", "export", "scores", "ingest"]
    for line in lines:
        run(*shlex.split(line, comments=True))
    assert {path.stem for path in (here / "again").glob("photo-*")} == {f"photo-{i:04d}" for i in range(24)}
    assert (here / "small.report" / "index.html").is_file()
    assert "intact" in run("dpca", "verify", "small.zarr")
    run("python", "-c", readme_block("Get it back out") + "assert photos.shape == (24, 40, 40, 3), photos.shape")

    explore = [installed / "dpca", "explore", "photos"]
    with subprocess.Popen(explore, cwd=here, env=environment, stdout=subprocess.PIPE, text=True) as page:
        try:
            address = page.stdout.readline().split()[0]
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address) as answer:
                assert '<img src="data:image/png' in answer.read().decode()
        finally:
            page.send_signal(signal.SIGINT)
