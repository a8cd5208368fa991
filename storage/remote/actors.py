"""Objects that stay in the memory of workers, and calls of their methods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from dpca.storage.errors import ClusterError
from dpca.storage.remote.clusters import cluster_errors, for_workers, is_watched, lost_state, task_key
from dpca.storage.remote.sharing import share_storage_options

# Seconds to wait for all workers: those that restart, and those that wait in the queue of a watched cluster.
_PATIENCE, _IN_QUEUE = 15.0, 600.0


class Objects(Protocol):
    """Objects with the same methods, in this process or on workers."""

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all objects at once, and return the results in order."""

    def call_one(self, i: int, method: str, *arguments: Any) -> Any:
        """Call a method of one object."""

    def close(self) -> None:
        """Release the objects."""


class LocalObjects:
    """Objects in this process. They are called one after the other."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = list(objects)

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all objects, and return the results in order."""
        return [getattr(one, method)(*arguments) for one in self._objects]

    def call_one(self, i: int, method: str, *arguments: Any) -> Any:
        """Call a method of one object."""
        return getattr(self._objects[i], method)(*arguments)

    def close(self) -> None:
        """Release the objects."""
        self._objects.clear()


class Actors:
    """Objects on workers of a Dask cluster. They are neither moved, nor written to disk, nor made again.

    Parameters
    ----------
    client : distributed.Client
    makers : mapping of str to callable
        Makes the object on the worker with this address.
    name : str
        Name of the tasks on the dashboard.

    Raises
    ------
    ClusterError
        Also by `call`, if a worker was lost with its object.
    """

    def __init__(self, client: Any, makers: Mapping[str, Callable[[], Any]], name: str) -> None:
        self._client, self._addresses = client, list(makers)
        self._futures = list[Any]()
        try:
            with cluster_errors(client):
                share_storage_options(client)
                # Without other workers, Dask would wait indefinitely for one that was lost.
                options = {"allow_other_workers": True, "actor": True}
                for address, make in makers.items():
                    made = client.submit(for_workers(make), key=task_key(name), workers=[address], **options)
                    self._futures.append(made)
                for future in self._futures:
                    if (error := future.exception()) is not None:
                        raise error
                found = client.who_has(self._futures)
            if [list(found[future.key]) for future in self._futures] != [[at] for at in self._addresses]:
                raise lost_state(client)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of all objects at once, and return the results in order."""
        return self._results(range(len(self._futures)), method, arguments)

    def call_one(self, i: int, method: str, *arguments: Any) -> Any:
        """Call a method of one object."""
        return self._results([i], method, arguments)[0]

    def close(self) -> None:
        """Release the objects."""
        with suppress(Exception):  # the cluster may be lost
            self._client.cancel(self._futures)
        self._futures.clear()

    def _results(self, numbers: Iterable[int], method: str, arguments: tuple[Any, ...]) -> list[Any]:
        with cluster_errors(self._client):
            if any(future.status != "finished" for future in self._futures):
                raise lost_state(self._client)
            try:
                answers = self._client.sync(self._answers, numbers, method, arguments)
            except (OSError, RuntimeError, LookupError) as error:
                # What methods raise arrives as their answer, so that these are errors of the connection, or the
                # worker does not have the object.
                raise lost_state(self._client) from error
            for answer in answers:
                if answer["status"] != "OK":
                    raise answer["exception"]
            return [answer["result"] for answer in answers]

    async def _answers(self, numbers: Iterable[int], method: str, arguments: tuple[Any, ...]) -> list[Any]:
        """Send calls to the workers through the scheduler, and return their answers.

        Dask's own proxy of an actor uses the current client or worker of this process, which may be of another cluster.
        """
        from distributed.protocol.serialize import to_serialize

        def message(i: int) -> dict[str, Any]:
            given = [to_serialize(argument) for argument in arguments]
            return {
                "op": "actor_execute",
                "function": method,
                "actor": self._futures[i].key,
                "args": given,
                "kwargs": {},
            }

        scheduler = self._client.scheduler
        calls = [scheduler.proxy(worker=self._addresses[i], msg=message(i)) for i in numbers]
        return list(await asyncio.gather(*calls))


def threads_by_worker(client: Any, n: int) -> list[str]:
    """Return the address of the worker of each of ``n`` threads of a cluster, as many workers as possible.

    Raises
    ------
    ClusterError
        If the cluster has fewer threads after 15 seconds, or after 10 minutes if it is watched.
    """
    ends = time.monotonic() + (_IN_QUEUE if is_watched(client) else _PATIENCE)
    while True:
        with cluster_errors(client):
            threads = dict(sorted(client.nthreads().items()))
        found = sorted((t, address) for address, count in threads.items() for t in range(count))[:n]
        if len(found) == n:
            return [address for _, address in found]
        if time.monotonic() > ends:
            raise ClusterError(
                f"the state is spread over {n} threads of workers, but the Dask cluster has {len(found)}: start more "
                "workers, and run the same command again to resume"
            )
        time.sleep(0.2)
