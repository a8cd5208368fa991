"""What tests of several rooms share: a cluster, small sources, and the real data where it is at hand."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from tests.helpers.blas import blas_libraries, blas_threads, set_blas_threads
from tests.helpers.default_client import not_the_default, the_default
from tests.helpers.forked import Programs
from tests.helpers.pictures import leave_pictures_empty
from tests.selection import MARKERS, is_of_one_test, is_short, left_out, mark_needs, without_repeated_pairs

# The same examples on every run, fewer of them in the short one; new ones with --hypothesis-profile=default.
settings.register_profile("reproducible", derandomize=True)
settings.register_profile("short", derandomize=True, max_examples=40)
settings.load_profile("reproducible")

# Tests start hundreds of programs and workers: the first one keeps what it compiled, also where that is switched off.
# Without this, every process of every run rewrites the assertions of all tests, which takes longer than the imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No power is cut here, and every store would wait for the disk a dozen times.
os.fsync = lambda handle: None

# What a shell runs in the background ignores these, or one of them with `nohup`; tests send them to see programs stop.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Modules that take longest: what is handed out last should take a moment.
LONGEST = (
    "test_containers",
    "test_kill",
    "test_given_cluster",
    "test_full_disk",
    "test_memory",
    "test_memory_workers",
    "test_streaming_kill",
    "test_lsun_streaming",
    "test_stop_anywhere",
    "test_reproduce_streaming",
    "test_clusters",
    "test_object_store_jobs",
)

CHROMIUM = shutil.which("chromium")
DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the two sizes of a run."""
    parser.addoption("--all", action="store_true", help="run all tests, those that take long too")
    parser.addoption("--short", action="store_true", help="run the short tests, of files that are named too")


def pytest_configure(config: pytest.Config) -> None:
    """State the markers, and choose the number of examples."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if is_short(config) and not config.getoption("--hypothesis-profile", None):
        settings.load_profile("short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest; mark tests with what they need, and leave those out that the short run has not."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    for item in items:
        mark_needs(item)
    out = set() if is_of_one_test(config) else without_repeated_pairs(items)
    if is_short(config):
        out |= left_out([item for item in items if item not in out])
    if out:
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]
    gc.freeze()  # else Python would visit thousands of tests and all that was imported whenever it looks for garbage


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread_each() -> None:
    """Processes that run tests side by side share the processors; threads of BLAS that wait for one use it up."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        set_blas_threads([1] * len(blas_libraries()))


@pytest.fixture
def two_blas_threads() -> Iterator[list[int]]:
    """Have BLAS use two threads; gives their numbers, one for each library."""
    before = blas_threads()
    assert before  # or there is nothing to test
    set_blas_threads([2] * len(before))
    yield [2] * len(before)
    set_blas_threads(before)


@pytest.fixture(scope="session")
def hidden_cluster() -> Iterator[Any]:
    """Two single-threaded processes, as a program starts them; one cluster a session, since starting takes seconds.

    Tests that do not name it must not compute on it, so that its client is not the default one.
    """
    from dpca.engine.clusters.cluster import open_client
    from tests.helpers.certificates import shown_to

    with open_client(workers=2, memory="1.5GB") as client, shown_to(client), not_the_default(client):
        yield client


@pytest.fixture
def cluster(hidden_cluster: Any) -> Iterator[Any]:
    """Client of that cluster, and the default one."""
    with the_default(hidden_cluster):
        yield hidden_cluster


@pytest.fixture(scope="session")
def scheduler(hidden_cluster: Any) -> str:
    """Address of that cluster, for ``--scheduler``; Dask's configuration has the credentials."""
    return str(hidden_cluster.scheduler.address)


@pytest.fixture(scope="session")
def programs() -> Iterator[Programs]:
    """Starts programs that have imported their libraries already."""
    with Programs() as programs:
        yield programs


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Address of an S3 server, at which this process reaches ``s3://bucket`` from now on."""
    from dpca.storage import use_storage_options
    from tests.helpers.s3_server import options_at, s3_server

    with s3_server() as address:
        use_storage_options(options_at(address), "s3://bucket")
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for a module."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    flags = [f"--{flag}" for flag in ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync")]
    flags += ["--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=flags, headless=True)
        yield chromium
        chromium.close()


@pytest.fixture
def bucket(s3: str, request: pytest.FixtureRequest) -> str:
    """URL of an empty place in that server, this test's own."""
    return "s3://bucket/" + re.sub(r"\W+", "-", request.node.name).strip("-")


@pytest.fixture(scope="module")
def small_pictures() -> Iterator[Callable[[Any], bytes]]:
    """Pictures of few pixels with nothing in them, in all of a module; gives what draws them otherwise."""
    from dpca.report import record

    draw = record.png
    with pytest.MonkeyPatch.context() as patch:
        leave_pictures_empty(patch.setattr)
        yield draw


@pytest.fixture
def drawn_pictures(small_pictures: Callable[[Any], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of few pixels that are drawn, in one test of such a module."""
    monkeypatch.setattr("dpca.report.record.png", small_pictures)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data."""
    if not DATA.is_dir():
        pytest.skip("the real data is not at ../shared/data")
    return DATA


def smooth_images(n: int, shape: tuple[int, ...] = (40, 36, 3), seed: int = 0) -> np.ndarray[Any, Any]:
    """Images with a decaying spectrum, as photographs have: a few waves, shaded, with grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[0], : shape[1]]
    waves = np.stack([np.cos(a * y / 9 + b * x / 7 + c) for a, b, c in rng.uniform(0, 3, (6, 3))])
    values = np.tensordot(rng.normal(0, 25, (n, 6)), waves, 1)[..., None] + rng.normal(0, 15, (n, 1, 1, 1))
    values = 128 + values + rng.normal(0, 4, (n, *shape[:2], shape[2] if len(shape) > 2 else 1))
    return np.clip(values, 0, 255).astype(np.uint8).reshape(n, *shape)


def sender(library: str) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Return a function that makes a library's array; "array-api-strict" has no more than the standard.

    Its arrays lie on a device of their own, and refuse to meet others.
    """
    if library == "numpy":
        return np.asarray
    if library == "torch":
        return pytest.importorskip("torch").asarray
    return lambda x: array_api_strict.asarray(x, device=array_api_strict.Device("device1"))


@pytest.fixture(params=["array-api-strict", "torch"])
def send(request: pytest.FixtureRequest) -> Callable[[np.ndarray[Any, Any]], Any]:
    """Make an array of another library."""
    return sender(request.param)


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder of PNG files and return it."""

    def make(n: int = 30, shape: tuple[int, ...] = (40, 36, 3), name: str = "photos", seed: int = 0) -> Path:
        return write_images(tmp_path / name, n, shape, seed)

    return make


def write_images(folder: Path, n: int, shape: tuple[int, ...], seed: int = 0) -> Path:
    """Make a folder of PNG files and return it."""
    folder.mkdir()
    for i, pixels in enumerate(smooth_images(n, shape, seed)):
        Image.fromarray(pixels).save(folder / f"photo-{i:04d}.png")
    return folder
