"""Access to object stores and web servers through fsspec: connection options, repeated requests, error messages.

Paths are URLs (``s3://bucket/key``). Credentials and other options come from the environment, from the configuration of
fsspec, or from `use_storage_options`. They are never part of a path, so they are never written, hashed or printed.
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

#: Number of attempts of a request that fails with a transient error.
ATTEMPTS = 5
# Seconds before the second attempt, and the factor of each further pause: 8.5 seconds in total.
_PAUSE, _LONGER = 0.1, 4
_jitter = random.Random(0)
# Errors that are answers of the server rather than failures of the connection.
_ANSWERS = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
_REFUSALS = (PermissionError, ImportError, NotImplementedError, ValueError, TypeError, AttributeError)
_PASSING_STATUS = (408, 425, 429)
# Protocols that do not support the options of object stores.
_PLAIN = ("http", "https", "memory")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "azure", "abfs": "azure", "abfss": "azure"}
# An object is written in one request, so that a failed request can be repeated. S3 supports 5 GB per request.
_UPLOAD = {"s3": {"chunksize": 2**31}, "s3a": {"chunksize": 2**31}}
# Shortest value of an option that may be a secret.
_SECRET = 4

# Options by URL prefix; "" applies to every object store.
_options: dict[str, dict[str, Any]] = {}

#: Called with a URL before this process writes or removes it. Each raises an error if another run now owns the URL.
fences: list[Callable[[str], None]] = []


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a URL, and not that of a local file."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(("file://", "local://"))


def use_storage_options(options: Mapping[str, Any] | None, url: str | os.PathLike[str] = "") -> None:
    """Set the options of an object store, for this process and its workers.

    Parameters
    ----------
    options : mapping, optional
        Options of the fsspec file system, such as ``endpoint_url``, ``key`` and ``secret`` for ``s3://``. None changes
        nothing. Options are kept in memory only, and are never written or printed.
    url : path-like
        Any URL in the bucket that the options are for. The default is every object store. A local path has no effect.
    """
    if options is not None and (not (where := os.fspath(url)) or is_url(where)):
        _options["/".join(where.split("/")[:3])] = dict(options)


def stated_options() -> dict[str, dict[str, Any]]:
    """Return all options set by `use_storage_options`, to copy them to another process."""
    return dict(_options)


def replace_options(options: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace all options by those that `stated_options` returned in another process."""
    copied = {url: dict(known) for url, known in options.items()}
    _options.clear()
    _options.update(copied)


def upload_options(url: str) -> dict[str, int]:
    """Return the additional arguments of fsspec methods that write an object."""
    return _UPLOAD.get(url.partition("://")[0], {})


def file_system(url: str, *, asynchronous: bool = False) -> tuple[AbstractFileSystem, str]:
    """Return the fsspec file system of a URL, and the path of the URL in this file system.

    Raises
    ------
    DataError
        If the protocol is unknown, its library is missing, or an option is invalid.
    """
    from fsspec.config import conf
    from fsspec.core import url_to_fs

    protocol = url.partition("://")[0]
    options: dict[str, Any] = {} if protocol in _PLAIN else dict(_options.get("", {}))
    options |= _options.get("/".join(url.split("/")[:3]), {})
    if protocol in ("s3", "s3a"):
        # `again` repeats requests, so botocore must not repeat them, too.
        stated = options.get("config_kwargs") or conf.get(protocol, {}).get("config_kwargs") or {}
        options["config_kwargs"] = {"retries": {"max_attempts": 0}, **stated}
    try:
        found, path = url_to_fs(url, use_listings_cache=False, asynchronous=asynchronous, **options)
        if protocol in ("s3", "s3a"):
            found.retries = found.max_concurrency = 1  # avoids a request for the size before the content
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        remedy = f'pip install "dask-dpca[{extra}]"' if extra else "install it"
        raise DataError(f"'{url}' requires a library that is not installed ({one_line(error)}): {remedy}") from error
    except Exception as error:  # each protocol raises its own exceptions
        raise DataError(
            f"'{url}' cannot be opened ({_without_secrets(error)}): check the URL and the options"
        ) from error
    return found, str(path)


def again(call: Call[T], url: str, doing: str) -> T:
    """Return the result of a call, which is repeated after transient errors.

    Parameters
    ----------
    call : callable
        An idempotent function.
    url : str
        The URL of the request, for error messages.
    doing : str
        The participle of the request in error messages: "read", "written".

    Raises
    ------
    FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError
        The same error as the call.
    StoreError
        Instead of every other error.
    """
    attempt = 0
    while True:
        try:
            _ask_fences(url, doing)
            return call()
        except Exception as error:  # each protocol raises its own exceptions
            pause = _pause_after(error, attempt, url, doing)
        time.sleep(pause)
        attempt += 1


async def again_async(call: Callable[[], Awaitable[T]], url: str, doing: str) -> T:
    """Repeat an asynchronous call; see `again`."""
    attempt = 0
    while True:
        try:
            _ask_fences(url, doing)
            return await call()
        except Exception as error:  # each protocol raises its own exceptions
            pause = _pause_after(error, attempt, url, doing)
        await asyncio.sleep(pause)
        attempt += 1


def _ask_fences(url: str, doing: str) -> None:
    if doing != "read":
        for fence in tuple(fences):
            fence(url)


def _pause_after(error: Exception, attempt: int, url: str, doing: str) -> float:
    """Return the seconds to wait before the next attempt, or raise the final error."""
    if isinstance(error, StoreError | DataError):
        raise error
    if isinstance(error, _ANSWERS):
        if doing != "written" or not isinstance(error, FileNotFoundError):
            raise error
        raise StoreError(
            f"'{url}' cannot be written (there is no such bucket): create the bucket, or check its name"
        ) from error
    if _is_refusal(error):
        raise StoreError(
            f"'{url}' cannot be {doing} ({_without_secrets(error)}): check the URL, the credentials and their "
            f"permissions"
        ) from error
    if attempt + 1 == ATTEMPTS:
        raise StoreError(
            f"'{url}' cannot be {doing} ({_without_secrets(error)}, {ATTEMPTS} times): run the same command again to "
            f"resume"
        ) from error
    return float(_PAUSE * _LONGER**attempt * _jitter.uniform(0.5, 1.5))


def _is_refusal(error: Exception) -> bool:
    """Return whether the same request would fail again."""
    if isinstance(error, _REFUSALS):
        return True
    status = next((v for n in ("status", "status_code", "code") if isinstance(v := getattr(error, n, None), int)), 0)
    credentials = "Credential" in type(error).__name__ or "ProfileNotFound" in type(error).__name__
    return credentials or (400 <= status < 500 and status not in _PASSING_STATUS)


def _without_secrets(error: Exception) -> str:
    """Return the message of an error without the values of options."""
    message = one_line(error)
    for options in _options.values():
        for value in _texts(options):
            message = message.replace(value, "***")
    return message


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for one in value.values() for text in _texts(one)]
    return [value] if isinstance(value, str) and len(value) >= _SECRET else []
