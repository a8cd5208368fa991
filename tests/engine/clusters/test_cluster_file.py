"""Cluster files: valid and invalid ones, and real clusters that start, change and end."""

from __future__ import annotations

import gc
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest

from dpca import CellPCA
from dpca.cli import main
from dpca.engine.clusters.cluster import open_client
from dpca.engine.clusters.cluster_file import read_cluster_file
from dpca.engine.clusters.tls import TlsFiles
from dpca.jobs import CompressionSettings, compress
from dpca.storage import ClusterError, DataError
from dpca.storage.input import open_input
from dpca.storage.remote.memory import parallel_tasks
from dpca.storage.run import Run
from tests.conftest import smooth_images, write_images
from tests.helpers.certificates import signed_files
from tests.helpers.forked import Programs

# A scheduler and workers in this process, which start at once.
HERE = """
class = "distributed.LocalCluster"
{workers}
[arguments]
processes = false
threads_per_worker = 2
dashboard_address = "127.0.0.1:0"
"""
PROCESSES = """
class = "distributed.LocalCluster"
{workers}
[arguments]
threads_per_worker = 1
memory_limit = "1.5GB"
dashboard_address = "127.0.0.1:0"
"""

Write = Callable[[str], str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dask_jobqueue writes credentials to the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file that describes a cluster; give its path."""

    def written(text: str) -> str:
        path = tmp_path / "cluster.toml"
        path.write_text(text)
        return str(path)

    return written


def test_a_file(write: Write, tmp_path: Path) -> None:
    whole = """
class = "dask_jobqueue.SLURMCluster"
patience = "2 hours"
[arguments]
cores = 4
job_extra_directives = ["--exclusive"]
[adaptive]
maximum = 20
[tls]
ca-file = "ca.pem"
cert = "/etc/dask.pem"
"""
    file = read_cluster_file(write(whole))
    assert (file.class_path, file.minimum, file.maximum) == ("dask_jobqueue.SLURMCluster", 0, 20)
    assert file.patience == 7200
    assert file.arguments == {"cores": 4, "job_extra_directives": ["--exclusive"]}
    assert file.tls == TlsFiles(str(tmp_path / "ca.pem"), "/etc/dask.pem")
    short = read_cluster_file(write('class = "a.B"\nworkers = 3'))
    assert (short.minimum, short.maximum, short.patience, short.arguments, short.tls) == (3, 3, 600, {}, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class = ", "TOML"),
        ("\xff", "TOML"),
        ("workers = 2", "missing key: class"),
        ('class = "a.B"', r"'workers' or \[adaptive\]"),
        ('class = "a.B"\nworkers = 2\n[adaptive]\nmaximum = 2', r"'workers' or \[adaptive\]"),
        ('class = "a.B"\nworkers = 0', "maximum is 0"),
        ('class = "a.B"\nworkers = true', "workers is True"),
        ('class = "a.B"\nworkers = "2"', "workers is '2'"),
        ('class = 3\nworkers = "2"', "class is 3"),
        ('class = "a.B"\nadaptive = 2', "adaptive is 2"),
        ('class = "a.B"\n[adaptive]', "maximum is 0"),
        ('class = "a.B"\n[adaptive]\nminimum = 3\nmaximum = 2', "minimum is 3"),
        ('class = "a.B"\n[adaptive]\nminimum = -1\nmaximum = 2', "minimum is -1"),
        ('class = "a.B"\n[adaptive]\nmaximum = 2\ninterval = "1s"', r"\[adaptive\].* unknown key: interval"),
        ('clas = "a.B"\nworkers = 2', "unknown key: clas"),
        ('class = "a.B"\nworkers = 2\npatience = "soon"', "patience is 'soon'"),
        ('class = "a.B"\nworkers = 2\npatience = "5 lightyears"', "patience is '5 lightyears'"),
        ('class = "a.B"\nworkers = 2\npatience = "0 s"', "patience is '0 s'"),
        ('class = "a.B"\nworkers = 2\n[tls]\nca = "x"', r"\[tls\].* unknown key: ca"),
    ],
)
def test_files_that_are_not_valid(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=says) as error:
        read_cluster_file(path)
    assert str(path) in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(DataError, match=r"\bread\b"):
            read_cluster_file(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("LocalCluster", "import path"),
        ("./mine.py", "import path"),
        ("/tmp/mine.Cluster", "import path"),
        ("distributed.LocalCluster()", "import path"),
        ("os.system", "not a Dask cluster class"),
        ("collections.OrderedDict", "not a Dask cluster class"),
        ("distributed.Client", "not a Dask cluster class"),
        ("no_such_package.Cluster", "cannot be imported"),
        ("distributed.NoSuchCluster", "cannot be imported"),
    ],
)
def test_what_is_no_class_of_clusters(name: str, says: str, write: Write) -> None:
    with pytest.raises(DataError, match=says), open_client(cluster=write(f'class = "{name}"\nworkers = 1')):
        pytest.fail("opened")


def test_nothing_in_the_working_directory_is_imported(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_about.py").write_text("raise SystemExit('run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    file = read_cluster_file(write('class = "lying_about.Cluster"\nworkers = 1'))
    with pytest.raises(DataError, match="lying_about"):
        file.cluster_class()


@pytest.mark.parametrize("arguments", ["nonsense = 1", 'memory_limit = "plenty"'])
def test_arguments_that_the_class_refuses(arguments: str, write: Write, programs: Programs) -> None:
    said = _refused(write(HERE.format(workers="workers = 1") + arguments), programs)
    assert re.search("distributed.LocalCluster of .* could not be started", said)


def _refused(cluster: str, programs: Programs) -> str:
    """Return the one sentence of a program that does not get its cluster; Dask cannot close one that is half there."""
    photos = write_images(Path(cluster).with_name("photos"), 2, (8, 8, 3))
    argv = ["ingest", str(photos), str(photos.with_suffix(".zarr")), "--cluster", cluster]
    code = f"import os, dpca.cli; os.environ['PATH'] = {os.environ['PATH']!r}; raise SystemExit(dpca.cli.main({argv}))"
    program = programs.start([sys.executable, "-c", code])
    _, said = program.communicate()
    assert program.returncode == 6, said
    assert said.count("\n") == 1, said
    return said


@pytest.mark.parametrize(
    "where", [{"scheduler": "tcp://127.0.0.1:1"}, {"workers": 2}, {"memory": "2GB"}, {"tls": TlsFiles("a", "b")}]
)
def test_a_file_and_something_that_contradicts_it(where: dict[str, Any], write: Write) -> None:
    with pytest.raises(DataError), open_client(cluster=write(HERE.format(workers="workers = 1")), **where):
        pytest.fail("opened")


def test_a_cluster_runs_for_the_length_of_a_block(write: Write) -> None:
    with open_client(cluster=write(HERE.format(workers="workers = 2"))) as client:
        running = client.cluster
        assert parallel_tasks(client, 7) == 4
        assert client.submit(sum, [1, 2]).result() == 3
    assert running.status.name == "closed"
    assert not running.workers


def test_all_parts_of_a_cluster_show_the_certificates_of_its_file(write: Write, tmp_path: Path) -> None:
    signed_files(tmp_path / "signed")
    tls = '[tls]\nca-file = "signed/ca.pem"\ncert = "signed/dask.pem"\nkey = "signed/dask.key"\n'
    text = HERE.format(workers="workers = 1") + 'protocol = "tls://"\n' + tls
    with open_client(cluster=write(text)) as client:
        addresses = [client.scheduler.address, *client.nthreads()]
        assert all(address.startswith("tls://") for address in addresses)
        assert client.submit(sum, [1, 2]).result() == 3


def test_without_certificates_a_cluster_has_credentials_of_its_own(write: Write) -> None:
    with open_client(cluster=write(HERE.format(workers="workers = 1"))) as client:
        address = client.scheduler.address
        assert address.startswith("tls://")
        with pytest.raises((DataError, ClusterError), match="certificate"), open_client(address):
            pytest.fail("opened")
    plain = HERE.format(workers="workers = 1") + 'protocol = "tcp://"\n'
    with open_client(cluster=write(plain)) as client:
        assert client.scheduler.address.startswith("tcp://")


def _prefixes(dask_scheduler: Any) -> set[str]:
    return set(dask_scheduler.task_prefixes)


def _count(dask_scheduler: Any, action: str) -> int:
    return sum(event["action"] == action for _, event in dask_scheduler.get_events("all"))


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_workers_that_come_and_go_change_nothing(write: Write, scheduler: str, cluster: Any, tmp_path: Path) -> None:
    """The same bytes as with two workers that stay, from a cluster that has none whenever there is nothing to do."""
    np.save(tmp_path / "a.npy", smooth_images(300, (24, 24)))
    settings = CompressionSettings(CellPCA(5, cell_shape=12))
    given = open_input(tmp_path / "a.npy")

    def leave(stage: str) -> None:
        """Wait before the fit until the cluster has no workers."""
        if not left and stage.startswith("fit"):
            left.append(stage)
            end = time.monotonic() + 60
            while client.nthreads() and time.monotonic() < end:
                time.sleep(0.05)
            assert not client.nthreads()

    left: list[str] = []
    compress(given, tmp_path / "calm.zarr", settings, run=Run(client=cluster))
    quick = {"interval": "100 ms", "wait-count": 2, "target-duration": "100 ms"}
    with (
        dask.config.set({"distributed.adaptive": quick}),
        open_client(cluster=write(PROCESSES.format(workers="[adaptive]\nmaximum = 2"))) as client,
    ):
        assert parallel_tasks(client, 7) == 2
        compress(given, tmp_path / "out.zarr", settings, run=Run(client=client, say=leave))
        assert client.run_on_scheduler(_count, action="add-worker") >= 2
        assert client.run_on_scheduler(_count, action="remove-worker") >= 1
        called = client.run_on_scheduler(_prefixes)
    assert _tree(tmp_path / "out.zarr") == _tree(tmp_path / "calm.zarr")
    assert called == {"begin", "ingest", "fit", "fit-merge", "fit-finish", "scores"}


def test_a_signal_ends_the_cluster_with_the_program(write: Write, tmp_path: Path, programs: Programs) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).integers(0, 256, (400, 96, 96, 3), dtype=np.uint8))
    path = write(PROCESSES.format(workers="workers = 2"))
    command = ["-m", "dpca", "ingest", str(tmp_path / "a.npy"), str(tmp_path / "out.zarr"), "--cluster", path]
    with programs.start([sys.executable, *command]) as running:
        assert "start workers" in running.stdout.readline()
        assert " worker" in running.stdout.readline()
        started = [child.pid for child in psutil.Process(running.pid).children(recursive=True)]
        assert len(started) >= 2
        running.send_signal(signal.SIGTERM)
        said = running.stderr.read()
    assert running.returncode == 143, said
    assert said.count("\n") <= 2, said
    _wait_for_the_end_of(*started)


def _wait_for_the_end_of(*pids: int) -> None:
    end = time.monotonic() + 60
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.05)


# -- Slurm's commands, for one machine: a job is a process in the background


_SBATCH = """#!/bin/sh
cp "$1" "{folder}/job.sh"
setsid sh "{folder}/job.sh" >>"{folder}/job.log" 2>&1 &
echo $! >"{folder}/job"
echo "Submitted batch job $!"
"""
_SCANCEL = """#!/bin/sh
kill -TERM -- "-$1"
"""
SLURM = """
class = "dask_jobqueue.SLURMCluster"
patience = "{patience}"
workers = 1
[arguments]
cores = 1
processes = 1
memory = "1GB"
nanny = false
python = "{python}"
[arguments.scheduler_options]
host = "127.0.0.1"
dashboard_address = "127.0.0.1:0"
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Replace sbatch and scancel by test commands."""
    pytest.importorskip("dask_jobqueue")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(stat.S_IRWXU)

    yield put
    gc.collect()  # closes the files of credentials, and warns of it where that is ignored


files_left_open = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.long
@files_left_open
def test_workers_that_are_jobs(
    slurm: Callable[[str, str], None], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for their version, show the cluster's credentials, which others cannot read, and end with it."""
    kept = f"ls -l {tmp_path}/.dask-jobqueue* >{tmp_path}/kept\n"
    slurm("sbatch", _SBATCH.format(folder=tmp_path).replace("echo $!", f"{kept}echo $!", 1))
    slurm("scancel", _SCANCEL)
    path = write(SLURM.format(patience="2 minutes", python=sys.executable))
    monkeypatch.setattr("dpca.__version__", "99.1")
    with pytest.raises(ClusterError, match=r"99\.1"), open_client(cluster=path):
        pytest.fail("opened")
    _wait_for_the_end_of(int((tmp_path / "job").read_text()))
    kept = (tmp_path / "kept").read_text().splitlines()
    assert len(kept) == 3
    assert all(line.startswith("-rw------- ") for line in kept)
    job = (tmp_path / "job.sh").read_text()
    assert "--tls-key" in job
    assert "PRIVATE" not in job


def test_jobs_that_are_refused(slurm: Callable[[str, str], None], write: Write, programs: Programs) -> None:
    slurm("sbatch", "#!/bin/sh\necho 'invalid partition specified: standard' >&2\nexit 1\n")
    said = _refused(write(SLURM.format(patience="2 minutes", python=sys.executable)), programs)
    assert "invalid partition specified" in said


@files_left_open
def test_jobs_that_wait_in_the_queue_for_too_long(slurm: Callable[[str, str], None], write: Write) -> None:
    slurm("sbatch", "#!/bin/sh\necho Submitted batch job 1\n")
    slurm("scancel", "#!/bin/sh\n")
    path = write(SLURM.format(patience="1 s", python=sys.executable))
    with pytest.raises(ClusterError, match="patience"), open_client(cluster=path):
        pytest.fail("opened")


def test_commands_take_a_file_or_an_address(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("workers = 2")
    with pytest.raises(SystemExit) as ended:
        main(["verify", "a.zarr", "--cluster", path, "--scheduler", "tcp://127.0.0.1:1"])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
