"""The cluster that a program starts or joins."""

from __future__ import annotations

import logging
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from dask.base import get_scheduler
from dask.utils import parse_timedelta
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_info

from dpca import CellPCA
from dpca.engine.clusters.cluster import open_client
from dpca.representation.lazy import default_client
from dpca.storage import ClusterError, DataError
from dpca.storage.remote.memory import parallel_tasks, task_budget, usable_bytes
from dpca.storage.remote.tasks import run_in_order
from dpca.storage.run import Run
from tests.helpers.forked import Programs, printed_by


def environment(dask_worker: Any) -> dict[str, Any]:
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    return {
        "pid": os.getpid(),
        "threads": dask_worker.state.nthreads,
        "limit": dask_worker.memory_manager.memory_limit,
        "address": dask_worker.address,
        "blas": {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"},
        "kept": os.environ.get("MALLOC_TRIM_THRESHOLD_"),
    }


def test_workers_are_single_threaded_processes_on_loopback(cluster: Any) -> None:
    workers = list(cluster.run(environment).values())
    assert len({w["pid"] for w in workers} | {os.getpid()}) == 3
    for worker in workers:
        assert worker["threads"] == 1
        assert worker["blas"] <= {1}
        assert worker["limit"] == 1_500_000_000
        assert worker["address"].startswith("tls://127.0.0.1:")
        assert worker["kept"] == str(512 * 2**20)
    assert cluster.scheduler.address.startswith("tls://127.0.0.1:")


def test_only_tests_that_name_the_cluster_compute_on_it(scheduler: str) -> None:
    assert default_client() is None
    assert get_scheduler() is None


def test_tests_that_name_the_cluster_compute_on_it(cluster: Any) -> None:
    assert default_client() is cluster
    assert get_scheduler() == cluster.get


def held(nbytes: int) -> int:
    import time

    import numpy as np

    held.memory = np.ones(nbytes, np.uint8)  # type: ignore[attr-defined]
    time.sleep(1)  # longer than Dask waits before it looks at the memory again
    return int(held.memory[-1])  # type: ignore[attr-defined]


def test_a_worker_that_holds_most_of_its_memory_works_on() -> None:
    with open_client(workers=1, memory="1GB") as client:
        used = next(iter(client.run(lambda: psutil.Process().memory_info().rss).values()))
        assert client.submit(held, 900_000_000 - used).result() == 1
        assert client.submit(len, "held").result(timeout=20) == 4


_WITH_ONE_WORKER = """
import os, sys
import dpca.metrics  # which a worker imports for no reason of its own
from dpca.engine.clusters.cluster import open_client
from dpca.representation.lazy import default_client

def origin():
    return os.getppid(), "dpca.metrics" in sys.modules

if __name__ == "__main__":
    with open_client(workers=1, memory="1500MB") as client:
        ((parent, imported),) = client.run(origin).values()
    print(parent != os.getpid(), imported)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_workers_are_forked_from_a_process_that_imported_what_the_program_has(programs: Programs) -> None:
    assert printed_by(programs, [sys.executable, "-c", _WITH_ONE_WORKER]).split() == ["True", "True"]


def test_workers_say_nothing_whatever_becomes_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    """One that is ended while it starts would print two tracebacks, one of Dask and one of multiprocessing."""

    def say() -> int:
        logging.getLogger("distributed.nanny").error("Worker process died unexpectedly")
        print("Process Dask Worker process (from Nanny):", file=sys.stderr, flush=True)
        return logging.getLogger("distributed.nanny").getEffectiveLevel()

    with open_client(workers=1, memory="1500MB") as client:
        assert list(client.run(say).values()) == [logging.CRITICAL + 1]
    assert capfd.readouterr().err == ""


def test_a_running_cluster_is_joined_and_left_alone(cluster: Any) -> None:
    with open_client(cluster.scheduler.address) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    assert client.status == "closed"
    assert cluster.submit(sum, [1, 2], pure=False).result() == 3


def test_the_budget_of_a_task_leaves_room_below_the_workers_limit(cluster: Any) -> None:
    budget = task_budget(cluster, 1)
    # distributed spills from 60 % on; the interpreter and its libraries take some of that.
    assert 0.3 * 1.5e9 < budget < 0.6 * 1.5e9 - 50e6
    assert task_budget(None, 4) == pytest.approx(usable_bytes() / 4, rel=0.1)


def test_what_workers_did_before_does_not_change_the_budget_of_a_task(cluster: Any) -> None:
    before = task_budget(cluster, 1)

    def grow() -> int:
        # Not from the heap, which may have room for it.
        dask.held_by_a_test = mmap.mmap(-1, 16 * 10**7)  # type: ignore[attr-defined]
        np.frombuffer(dask.held_by_a_test, np.uint8)[:] = 1  # type: ignore[attr-defined]
        return held()

    def held() -> int:
        return int(psutil.Process().memory_info().rss)

    def shrink() -> None:
        del dask.held_by_a_test  # type: ignore[attr-defined]

    fresh = cluster.run(held)
    assert all(now > fresh[worker] + 10**8 for worker, now in cluster.run(grow).items())
    assert task_budget(cluster, 1) == before
    cluster.run(shrink)


def test_results_that_workers_keep_lower_the_budget_of_a_task(cluster: Any) -> None:
    before = task_budget(cluster, 1)
    kept = cluster.scatter(np.ones(2 * 10**7))
    assert before - 1.6e8 <= task_budget(cluster, 1) <= before - 1.6e8 + 6.4e7
    kept.release()
    end = time.monotonic() + 60
    while task_budget(cluster, 1) != before and time.monotonic() < end:  # the scheduler tells the worker when it likes
        time.sleep(0.1)
    assert task_budget(cluster, 1) == before


def test_a_worker_that_retires_at_once_still_gives_the_budget(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adaptive cluster may have no worker before and after the task that makes it start one."""
    before = task_budget(cluster, 1)
    monkeypatch.setattr(cluster, "run", lambda *given, **options: {})
    assert task_budget(cluster, 1) == before


def test_a_cluster_without_workers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.storage.remote.memory._PATIENCE", 0.5)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as empty,
        Client(empty) as client,
        pytest.raises(ClusterError, match="workers"),
    ):
        task_budget(client, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"workers": -3}, "workers is -3"),
        ({"workers": 1, "memory": "plenty"}, "memory is 'plenty'"),
        ({"workers": 1, "memory": "10MB"}, "memory is '10MB'"),
        ({"workers": 1, "memory": 0}, "memory is '0'"),
    ],
)
def test_numbers_that_make_no_sense(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says), open_client(**options):
        pytest.fail("opened")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that is open and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(5)
        yield listening.getsockname()[1]


@pytest.mark.long
@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:1",
        "tcp://127.0.0.1:{silent}",
        "tcp://no-such-host.invalid:8786",
        "nonsense://here",
        "nonsense",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "",
    ],
)
def test_nobody_at_the_address(address: str, silent_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.engine.clusters.cluster._ANSWER", 3.0)
    address = address.format(silent=silent_port)
    with pytest.raises(ClusterError) as error, open_client(address):
        pytest.fail("opened")
    assert address in str(error.value)
    assert "--scheduler" in str(error.value)


def test_a_worker_of_another_version_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpca.__version__", "99.1")
    with pytest.raises(ClusterError, match=r"99\.1"), open_client(cluster.scheduler.address):
        pytest.fail("opened")


def test_a_worker_of_another_version_that_joined_late_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(20, 8, 8))
    with open_client(cluster.scheduler.address) as client:
        monkeypatch.setattr("dpca.__version__", "99.1")  # as if all of its workers came from now on
        with pytest.raises(ClusterError, match=r"99\.1"):
            list(run_in_order(abs, [(-1,)], client=client))
        with pytest.raises(ClusterError, match=r"99\.1"):
            CellPCA(2, cell_shape=4).fit(da.from_array(x, chunks=(5, 8, 8)), run=Run(client=client))


def test_settings_of_dask_are_put_back() -> None:
    keys = ["distributed.nanny.pre-spawn-environ", "distributed.deploy.lost-worker-timeout"]
    before = [dask.config.get(key) for key in keys]
    with pytest.raises(DataError), open_client(workers=1, memory="1MB"):
        pass
    assert [dask.config.get(key) for key in keys] == before


def test_a_dead_worker_is_started_again_and_given_the_time_that_takes() -> None:
    with open_client(workers=1, memory="1GB") as client:
        (pid,) = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        assert client.submit(os.getpid, pure=False).result(timeout=120) != pid
        # Dask asks for this 15 seconds after the death, by default.
        assert parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout")) > 600
        assert client.cluster.scheduler.no_workers_timeout >= 60
        # Nobody can see profiles of these workers, which would take more memory every second.
        profiled = client.run(lambda dask_worker: "profile" in dask_worker.periodic_callbacks)
        assert list(profiled.values()) == [False]


def test_dead_workers_count_while_they_are_on_their_way_back() -> None:
    with open_client(workers=2, memory="600MB") as client:
        with Client(client.scheduler.address, security=client.security) as other:
            assert parallel_tasks(other, 7) == parallel_tasks(client, 7) == 2
        process = psutil.Process(next(iter(client.run(os.getpid).values())))
        process.kill()
        assert parallel_tasks(client, 7) == 2
    assert parallel_tasks(None, 7) == 7


_MASKS = """
import psutil
from dpca.engine.clusters.cluster import open_client
from dpca.representation.lazy import default_client
if __name__ == "__main__":
    with open_client(workers=1, memory="1GB"):
        for one in psutil.Process().children(recursive=True):
            kind = next((word for word in ("forkserver", "resource_tracker") if word in " ".join(one.cmdline())), None)
            if kind:
                print(kind, next(line for line in open(f"/proc/{one.pid}/status") if line.startswith("SigBlk")))
"""


@pytest.mark.programs
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_that_are_still_importing_do_not_print_a_traceback(tmp_path: Path) -> None:
    """A terminal sends signals to them, too. They are blocked from the start of the process that forks them.

    The process that tracks shared resources ignores SIGINT by itself, but another one in its place prints errors.
    """
    (tmp_path / "program.py").write_text(_MASKS)
    said = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, check=True)
    blocked = {"forkserver": {signal.SIGINT, signal.SIGHUP}, "resource_tracker": {signal.SIGHUP}}
    found = {kind: int(mask, 16) for kind, _, mask in (line.split() for line in said.stdout.splitlines() if line)}
    assert set(found) == set(blocked)
    for kind, mask in found.items():
        assert all(mask >> (number - 1) & 1 for number in blocked[kind])


@pytest.mark.programs
@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_a_program_that_workers_cannot_import_is_told_why(guard: str, tmp_path: Path) -> None:
    """A worker imports the main program. Without a guard it would start a cluster, too. Standard input is no file."""
    program = f"from dpca.engine.clusters.cluster import open_client\n{guard}with open_client(workers=1): pass\n"
    path = tmp_path / "program.py"
    path.write_text(program)
    command, given = ([sys.executable, "-"], program) if guard else ([sys.executable, str(path)], "")
    said = subprocess.run(command, input=given, capture_output=True, text=True, cwd=tmp_path)
    assert said.returncode == 1
    assert re.search("ClusterError: .* in a file.*__main__", said.stderr)
