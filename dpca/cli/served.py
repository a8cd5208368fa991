"""Recognizes the finished output of an earlier, equal request. The libraries that compute are not imported for it."""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

from dpca import __version__
from dpca.parameters.common import COSLAT
from dpca.storage.errors import StoreError
from dpca.storage.integrity.manifest import METADATA, ROOT_KEY, check_metadata, digest_of
from dpca.storage.readers.maps import read_map
from dpca.storage.remote.objects import place_of
from dpca.storage.transaction.claim import read_json
from dpca.storage.transaction.workspace import fingerprint_of

# Options for execution and paths. They do not change the content of an output.
_HOW = (
    "scheduler",
    "cluster",
    "tls_ca_file",
    "tls_cert",
    "tls_key",
    "workers",
    "memory",
    "storage_option",
    "plan",
    "metrics",
)
_WHERE = ("source", "output", "stack", "model", "scores", "store", "target")
# Options that may be the path of a map.
_MAPS = ("mask", "sigma", "weights")
_BUDGET = ("live", "max_seconds", "max_samples")
_NOT_ASKED = (*_WHERE, *_HOW, *_BUDGET, "run", "argv", "print_completion", "overwrite")


def request_of(options: argparse.Namespace, *given: Any) -> str:
    """Return a hash of the input, the options that are given, and this version."""
    given_ones = ((name, value) for name, value in vars(options).items() if value is not None)
    asked = sorted((name, _content(name, value)) for name, value in given_ones if name not in _NOT_ASKED)
    return fingerprint_of("request", __version__, *given, asked)


def _content(name: str, value: Any) -> Any:
    """Return the value of an option, or a hash of the values of the map that it is the path of."""
    if name not in _MAPS or not isinstance(value, str) or value == COSLAT:
        return value
    with suppress(ValueError):
        return float(value)
    return digest_of(read_map(value).tobytes())


def served(request: str, output: str) -> dict[str, Any] | None:
    """Return the metadata of a store that was made for this request.

    None if there is no such store or its metadata are damaged. The job then makes it or reports the damage.
    """
    facts = stated(output)
    if facts.get("request") != request:
        return None
    try:
        check_metadata(place_of(output))
    except StoreError:
        return None
    return facts


def stated(store: str) -> dict[str, Any]:
    """Return the metadata of a store, empty if there is no store."""
    attributes = (read_json(place_of(store) / METADATA) or {}).get("attributes")
    facts = attributes.get(ROOT_KEY) if isinstance(attributes, dict) else None
    return facts if isinstance(facts, dict) else {}
