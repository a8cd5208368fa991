"""A Zarr store in an object store or on a web server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import FsspecStore

from dpca.storage.remote.network import again_async, file_system, upload_options

T = TypeVar("T")


class ObjectStore(FsspecStore):
    """A Zarr store in an object store, which repeats requests after transient errors.

    Parameters
    ----------
    url : str
        URL of the store.
    read_only : bool
        Whether writing raises an error.
    beside : str, optional
        URL of the folder with the metadata of the root, while the store is being written.
    """

    def __init__(self, url: str, *, read_only: bool = True, beside: str | None = None) -> None:
        from zarr.storage._fsspec import _make_async

        fs, path = file_system(url, asynchronous=True)
        super().__init__(fs if fs.async_impl else _make_async(fs), read_only=read_only, path=path)
        self.url, self._beside = url, beside
        self._elsewhere = None if beside is None else ObjectStore(beside, read_only=read_only)

    def with_read_only(self, read_only: bool = False) -> ObjectStore:
        """Return the same store, read-only or writable."""
        return ObjectStore(self.url, read_only=read_only, beside=self._beside)

    def __reduce__(self) -> Any:
        return _reopened, (self.url, self.read_only, self._beside)

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"ObjectStore('{self.url}')"

    def _has(self, key: str) -> FsspecStore:
        return self if self._elsewhere is None or key != "zarr.json" else self._elsewhere

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Return the content of a key; None if it does not exist."""
        home = self._has(key)
        return await self._again(lambda: FsspecStore.get(home, key, prototype, byte_range), key)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Return ranges of several keys."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def exists(self, key: str) -> bool:
        """Return whether a key exists, by a single request; s3fs would also search for a folder."""
        return await self.get(key, default_buffer_prototype(), RangeByteRequest(0, 1)) is not None

    async def set(self, key: str, value: Buffer, byte_range: tuple[int, int] | None = None) -> None:
        """Write a key."""
        self._check_writable()
        home = self._has(key)
        path, content, options = f"{home.path}/{key}", value.to_bytes(), upload_options(self.url)
        await self._again(lambda: home.fs._pipe_file(path, content, **options), key, "written")

    async def delete(self, key: str) -> None:
        """Remove a key."""
        home = self._has(key)
        await self._again(lambda: FsspecStore.delete(home, key), key, "removed")

    async def delete_dir(self, prefix: str) -> None:
        """Remove all keys below a prefix."""
        await self._again(lambda: FsspecStore.delete_dir(self, prefix), prefix, "removed")

    async def list(self) -> AsyncIterator[str]:
        """Yield all keys."""
        for key in await self._again(lambda: _all(FsspecStore.list(self))):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys with a prefix."""
        for key in await self._again(lambda: _all(FsspecStore.list_prefix(self, prefix)), prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the entries of a folder."""
        for key in await self._again(lambda: _all(FsspecStore.list_dir(self, prefix)), prefix):
            yield key

    async def _again(self, call: Callable[[], Awaitable[T]], key: str = "", doing: str = "read") -> T:
        return await again_async(call, f"{self.url}/{key}".rstrip("/"), doing)


async def _all(keys: AsyncIterator[str]) -> Sequence[str]:
    return [key async for key in keys]


def _reopened(url: str, read_only: bool, beside: str | None) -> ObjectStore:
    return ObjectStore(url, read_only=read_only, beside=beside)
