from __future__ import annotations

import os
import signal
import threading
import time
from itertools import count

import dask
import pytest
from threadpoolctl import threadpool_limits

from dpca.storage.errors import DataError
from dpca.storage.remote.tasks import map_shards, one_blas_thread, run_in_blocks, run_in_order
from tests.helpers.blas import blas_threads


def double(x):
    return 2 * x


def slow_first(i):
    time.sleep(0.1 if i == 0 else 0)
    return i


def fail_at_three(i):
    if i == 3:
        raise DataError("3.jpg: truncated")
    return i


def die_once(path):
    """Kill the worker that runs this, unless an earlier attempt did."""
    if not os.path.exists(path):
        open(path, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


@pytest.fixture(params=["inline", "threads", "cluster"])
def where(request):
    if request.param == "cluster":
        return {"client": request.getfixturevalue("client")}
    return {"threads": 1 if request.param == "inline" else 3}


def test_results_come_in_order(where):
    assert list(run_in_order(double, ((i,) for i in range(30)), **where)) == list(range(0, 60, 2))
    assert list(run_in_order(slow_first, ((i,) for i in range(8)), **where)) == list(range(8))
    assert list(run_in_order(double, [], **where)) == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_do_not_depend_on_the_number_of_threads(threads):
    seen = set()

    def length(few):
        seen.add(threading.current_thread().name)
        time.sleep(0.05)
        return few.start, few.stop

    with dask.config.set(num_workers=threads):
        assert run_in_blocks(length, 10, 4) == [(0, 4), (4, 8), (8, 10)]
        assert len(seen) == min(threads, 3)
        assert run_in_blocks(length, 0, 4) == []


def test_endless_calls_are_drawn_only_as_far_as_the_window(where):
    drawn = []

    def calls():
        for i in count():
            drawn.append(i)
            yield (i,)

    results = run_in_order(double, calls(), window=4, **where)
    for taken in range(1, 20):
        next(results)
        assert len(drawn) <= taken + 4
    results.close()
    assert len(drawn) <= 19 + 4


def test_the_first_failure_in_order_is_raised_unchanged(where):
    drawn = []

    def calls():
        for i in range(1000):
            drawn.append(i)
            yield (i,)

    results = []
    with pytest.raises(DataError) as caught:
        results.extend(run_in_order(fail_at_three, calls(), **where))
    assert str(caught.value) == "3.jpg: truncated"
    assert type(caught.value) is DataError
    assert results == [0, 1, 2]
    assert len(drawn) < 30


def test_a_failure_of_the_calls_themselves_passes_through(where):
    def calls():
        yield (0,)
        raise DataError("archive: damaged")

    with pytest.raises(DataError, match="archive"):
        list(run_in_order(double, calls(), **where))


def test_local_calls_that_run_are_waited_for_and_those_that_wait_are_not_started():
    started, finished, release = [], [], threading.Event()

    def work(i):
        started.append(i)
        if i > 0:
            release.wait(10)
            finished.append(i)
        return i

    results = run_in_order(work, ((i,) for i in range(100)), threads=2, window=8)
    assert next(results) == 0
    while len(started) < 3:  # one that is done and two that run
        time.sleep(0.001)
    threading.Timer(0.05, release.set).start()
    results.close()
    assert sorted(finished) == [1, 2]
    assert sorted(started) == [0, 1, 2]


def test_a_cluster_forgets_what_was_given_up(client):
    results = run_in_order(double, ((i,) for i in range(100)), client=client)
    next(results)
    results.close()
    deadline = time.monotonic() + 10
    while client.cluster.scheduler.tasks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not client.cluster.scheduler.tasks


def test_futures_among_the_arguments_are_resolved(client):
    data = client.scatter(21)
    assert list(run_in_order(double, [(data,)], client=client)) == [42]


def test_a_worker_that_dies_is_replaced_and_its_call_runs_again(tmp_path, cluster):
    (pid,) = run_in_order(die_once, [(str(tmp_path / "died"),)], client=cluster)
    assert pid != os.getpid()
    assert (tmp_path / "died").exists()
    cluster.wait_for_workers(2)


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"window": 0}])
def test_at_least_one(wrong):
    with pytest.raises(ValueError, match=r"\b1\b"):
        run_in_order(double, [(1,)], **wrong)


def test_blas_has_one_thread_inside_and_its_own_number_after(two_blas_threads):
    assert blas_threads() == two_blas_threads
    for _ in range(6):
        inside = list(run_in_order(blas_threads, [()] * 8, threads=4))
        assert inside == [[1] * len(two_blas_threads)] * 8
        assert blas_threads() == two_blas_threads


def test_blocks_that_overlap_in_several_threads_keep_the_limit_until_the_last_is_left(two_blas_threads):
    entered, leave = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def block(i):
        with one_blas_thread():
            entered[i].set()
            leave[i].wait()

    threads = [threading.Thread(target=block, args=(i,)) for i in range(3)]
    for thread, event in zip(threads, entered, strict=True):
        thread.start()
        event.wait()
    for i in (1, 0):
        leave[i].set()
        threads[i].join()
        assert blas_threads() == [1] * len(two_blas_threads)
    leave[2].set()
    threads[2].join()
    assert blas_threads() == two_blas_threads
    with threadpool_limits(1, user_api="blas"):  # nothing is left behind that would keep others from setting it
        assert blas_threads() == [1] * len(two_blas_threads)


def test_calls_that_are_never_started_set_no_limit(two_blas_threads):
    results = run_in_order(double, [(1,)], threads=2)
    assert blas_threads() == two_blas_threads
    del results


def test_a_block_that_fails_lifts_the_limit(two_blas_threads):
    with pytest.raises(DataError):
        list(run_in_order(fail_at_three, [(3,)], threads=2))
    assert blas_threads() == two_blas_threads


class Told:
    """A stage that remembers."""

    def __init__(self):
        self.said = []

    def advance(self, n):
        self.said.append(n)

    def close(self):
        self.said.append("closed")


def test_shards_that_are_done_are_left_alone_and_the_others_are_marked_in_order(where):
    marked, told = {2: None, 5: None}, Told()
    shards = ((i, 10 + i, None if i in marked else (i,)) for i in range(8))
    found = map_shards(slow_first, shards, marked.__setitem__, stage=told, **where)
    assert found == [0, 1, 3, 4, 6, 7]
    assert list(marked.items()) == [(2, None), (5, None), *((i, i) for i in found)]
    assert told.said[-1] == "closed"
    assert sorted(told.said[:-1]) == list(range(10, 18))


def test_shards_before_one_that_fails_stay_marked(where):
    marked, told = {}, Told()
    with pytest.raises(DataError, match="3.jpg"):
        map_shards(fail_at_three, ((i, 1, (i,)) for i in range(8)), marked.__setitem__, stage=told, **where)
    assert marked == {0: 0, 1: 1, 2: 2}
    assert told.said == [1, 1, 1, "closed"]


def test_an_error_of_the_mark_ends_the_loop(where):
    done, told = [], Told()

    def full(shard, outcome):
        done.append(shard)
        raise OSError("no space left")

    with pytest.raises(OSError, match="space"):
        map_shards(double, ((i, 1, (i,)) for i in range(8)), full, stage=told, **where)
    assert (done, told.said) == ([0], ["closed"])
