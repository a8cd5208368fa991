"""Object stores and web servers, reached through fsspec: options of a connection, attempts, errors as one sentence.

Paths of this kind are URLs (``s3://bucket/key``). What else a connection needs is known to the process: the usual
environment, fsspec's own configuration, or `use_storage_options`. It is never part of a path, so that nothing that is
written, hashed or printed can hold it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dpca.storage.errors import DataError, StoreError, one_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")
Call = Callable[[], T]

#: How often a request is made that fails for a reason that may pass.
ATTEMPTS = 5
# Seconds before the second attempt, and how many times longer each further pause is: 8.5 seconds in all.
_PAUSE, _LONGER = 0.1, 4
_jitter = random.Random(0)
# Errors that tell something about what was asked, not about the way there.
_ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_REFUSALS = (PermissionError, ImportError, NotImplementedError, ValueError, TypeError, AttributeError)
_PASSING_STATUS = (408, 425, 429)
# Protocols that take no options meant for an object store.
_PLAIN = ("http", "https", "memory")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "azure", "abfs": "azure", "abfss": "azure"}
# What writing an object takes: in one request, since one that fails is repeated, and S3 takes 5 GB in one.
_UPLOAD = {"s3": {"chunksize": 2**31}, "s3a": {"chunksize": 2**31}}
# Shorter values of options are words and numbers.
_SECRET = 4

# Options by the beginning of the URLs that they are for; "" is for every object store.
_options: dict[str, dict[str, Any]] = {}

#: Called with a URL before this process writes or removes it; each raises where that is another's by now.
fences: list[Callable[[str], None]] = []


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL of something that is not a local file."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(("file://", "local://"))


def use_storage_options(options: Mapping[str, Any] | None, url: str | os.PathLike[str] = "") -> None:
    """Reach an object store with these options from now on, in this process and in the workers that work for it.

    Parameters
    ----------
    options : mapping, optional
        What fsspec's file system takes, such as ``endpoint_url``, ``key`` and ``secret`` of ``s3://``; None changes
        nothing. They are kept in memory, and written and shown nowhere.
    url : path-like
        Anything in the bucket that they are for; by default every object store. A path changes nothing.
    """
    if options is not None and (not (where := os.fspath(url)) or is_url(where)):
        _options["/".join(where.split("/")[:3])] = dict(options)


def stated_options() -> dict[str, dict[str, Any]]:
    """Return what `use_storage_options` was told, to be told to another process."""
    return dict(_options)


def replace_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Know what `stated_options` of another process returned, and nothing that was known before."""
    told = {url: dict(known) for url, known in options.items()}
    _options.clear()
    _options.update(told)


def upload_options(url: str) -> dict[str, int]:
    """Return what fsspec's methods that write an object are given beside it."""
    return _UPLOAD.get(url.partition("://")[0], {})


def file_system(url: str, *, asynchronous: bool = False) -> tuple[AbstractFileSystem, str]:
    """Return fsspec's file system for a URL, and the URL as the file system writes it.

    Raises
    ------
    DataError
        If the protocol is unknown, or its library or an option is wrong.
    """
    from fsspec.config import conf
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0]
    options: dict[str, Any] = {} if protocol in _PLAIN else dict(_options.get("", {}))
    options |= _options.get("/".join(url.split("/")[:3]), {})
    if protocol in ("s3", "s3a"):
        # attempts are counted here, and nowhere else
        stated = options.get("config_kwargs") or conf.get(protocol, {}).get("config_kwargs") or {}
        options["config_kwargs"] = {"retries": {"max_attempts": 0}, **stated}
    try:
        found, path = url_to_fs(url, use_listings_cache=False, asynchronous=asynchronous, **options)
        if protocol in ("s3", "s3a"):
            found.retries = found.max_concurrency = 1  # an object's size is not asked for before its content
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f'pip install "dask-dpca[{extra}]"' if extra else "install it"
        raise DataError(f"'{url}' needs a library that is not installed ({one_line(error)}): {remedy}") from error
    except Exception as error:  # protocols raise errors of their own
        raise DataError(f"'{url}' cannot be opened ({_told(error)}): check the address and its options") from error
    return found, str(path)


def again(call: Call[T], url: str, doing: str) -> T:
    """Return what a call returns, which is repeated while its errors may pass.

    Parameters
    ----------
    call : callable
        Without an effect that a second call would not have.
    url : str
        What it is about, for messages.
    doing : str
        What cannot be done if it fails: "read", "written".

    Raises
    ------
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError
        As the call.
    StoreError
        In place of every other error.
    """
    attempt = 0
    while True:
        try:
            _ask_fences(url, doing)
            return call()
        except Exception as error:  # protocols raise errors of their own
            pause = _pause_after(error, attempt, url, doing)
        time.sleep(pause)
        attempt += 1


async def again_async(call: Callable[[], Awaitable[T]], url: str, doing: str) -> T:
    """Do as `again`."""
    attempt = 0
    while True:
        try:
            _ask_fences(url, doing)
            return await call()
        except Exception as error:  # protocols raise errors of their own
            pause = _pause_after(error, attempt, url, doing)
        await asyncio.sleep(pause)
        attempt += 1


def _ask_fences(url: str, doing: str) -> None:
    if doing != "read":
        for fence in tuple(fences):
            fence(url)


def _pause_after(error: Exception, attempt: int, url: str, doing: str) -> float:
    """Return the seconds to wait before the next attempt; raise if there is to be none."""
    if isinstance(error, StoreError | DataError):
        raise error
    if isinstance(error, _ANSWERS):
        if doing != "written" or not isinstance(error, FileNotFoundError):
            raise error
        raise StoreError(f"'{url}' cannot be written (there is no such bucket): make it, or check the name") from error
    if _is_refusal(error):
        raise StoreError(
            f"'{url}' cannot be {doing} ({_told(error)}): check the address, the credentials and their permissions"
        ) from error
    if attempt + 1 == ATTEMPTS:
        raise StoreError(
            f"'{url}' cannot be {doing} ({_told(error)}, {ATTEMPTS} times): run the same command again to continue"
        ) from error
    return float(_PAUSE * _LONGER**attempt * _jitter.uniform(0.5, 1.5))


def _is_refusal(error: Exception) -> bool:
    """Return whether the same request would be refused again."""
    if isinstance(error, _REFUSALS):
        return True
    status = next((v for n in ("status", "status_code", "code") if isinstance(v := getattr(error, n, None), int)), 0)
    credentials = "Credential" in type(error).__name__ or "ProfileNotFound" in type(error).__name__
    return credentials or (400 <= status < 500 and status not in _PASSING_STATUS)


def _told(error: Exception) -> str:
    """Return the message of an error without the values of options."""
    told = one_line(error)
    for options in _options.values():
        for value in _texts(options):
            told = told.replace(value, "***")
    return told


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in _texts(one)]
    return [value] if isinstance(value, str) and len(value) >= _SECRET else []
