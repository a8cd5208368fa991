"""Other users of the machine cannot access a program's own cluster or page."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster

from dpca.engine.clusters.cluster import open_client
from dpca.engine.clusters.private import private_folder
from dpca.explore.server import PageServer
from dpca.storage import StoreError
from tests.helpers.forked import Programs, printed_by
from tests.helpers.other_user import NOBODY, command, listening

_OURS = Path(tempfile.gettempdir(), f"dpca-{os.getuid()}")

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can try as another user")


@pytest.fixture
def page() -> Iterator[PageServer]:
    server = PageServer("a store", host="127.0.0.1", port=0)
    server.start()
    server.show("<p>first</p>")
    yield server
    server.stop()


@as_root
def test_another_user_can_read_and_run_nothing(page: PageServer, programs: Programs) -> None:
    """Every port at which the cluster of a program and a page listen, and every temporary file of theirs."""

    def spill(dask_worker: Any) -> str:
        Path(dask_worker.local_directory, "storage", "spilled").write_text("data")
        return str(dask_worker.local_directory)

    before = listening() - {page.port}
    with open_client(workers=1, memory="1GB") as client:
        folders = [Path(folder) for folder in client.run(spill).values()]
        at = listening() - before
        assert len(at) >= 4  # the page, a scheduler, a nanny, and a worker
        found = printed_by(programs, command(at, [*folders, _OURS]))
    assert not found.strip()


@as_root
def test_that_user_does_find_what_is_open(programs: Programs) -> None:
    """Or the test above would prove nothing."""
    before = listening()
    with LocalCluster(n_workers=1, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0") as cluster:
        found = printed_by(programs, command(listening() - before, []))
    assert f"{cluster.scheduler_address} lets in" in found or f"{cluster.scheduler_address} ran" in found
    assert "ran a function as uid 0" in found
    assert "/status is served" in found


def test_folders_for_temporary_files_are_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may have created the folder, and Python searches the folders of a cluster for modules."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(dask.config.config, "temporary-directory", None)
    before = os.umask(0)
    try:
        folder = Path(private_folder())
        assert folder == Path(private_folder())
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder.chmod(0o777)
        taken = [private_folder()]
        folder.rmdir()
        folder.symlink_to(tmp_path)
        taken.append(private_folder())
        folder.unlink()
        folder.write_text("a file")
        taken.append(private_folder())
        if os.getuid() == 0:
            folder.unlink()
            folder.mkdir(0o700)
            os.chown(folder, NOBODY, NOBODY)
            taken.append(private_folder())
    finally:
        os.umask(before)
    assert len({*taken, str(folder)}) == len(taken) + 1
    for other in taken:
        assert Path(other).parent == tmp_path
        assert stat.S_IMODE(os.stat(other).st_mode) == 0o700
        assert os.stat(other).st_uid == os.getuid()


def test_a_cluster_inside_another_uses_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dask.config.config, "temporary-directory", str(tmp_path))
    folder = private_folder()
    monkeypatch.setitem(dask.config.config, "temporary-directory", folder)
    assert private_folder() == folder


def test_no_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dask.config.config, "temporary-directory", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="TMPDIR"):
        private_folder()


def test_python_looks_for_modules_in_no_folder_of_others(cluster: Any) -> None:
    """Dask puts the folders of a scheduler, a nanny and a worker first on Python's path."""
    running = cluster.cluster
    folders = [part.local_directory for part in (running.scheduler, *running.workers.values())]
    folders += cluster.run(lambda dask_worker: dask_worker.local_directory).values()
    assert len(folders) == 5
    assert all(folder.startswith(f"{_OURS}{os.sep}") for folder in folders)
