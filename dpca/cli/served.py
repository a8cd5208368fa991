"""Recognizes what was made for the same request before, without the libraries that compute: these take seconds."""

from __future__ import annotations

import argparse
from typing import Any

from dpca import __version__
from dpca.storage.claim import read_json
from dpca.storage.errors import StoreError
from dpca.storage.manifest import METADATA, ROOT_KEY, check_metadata
from dpca.storage.objects import place_of
from dpca.storage.workspace import fingerprint_of

# Options that say how a job runs, or where things are, and not what it makes.
_HOW = ("scheduler", "cluster", "tls_ca_file", "tls_cert", "tls_key", "workers", "memory", "storage_option", "plan")
_WHERE = ("source", "output", "stack", "model", "scores", "target")
_BUDGET = ("live", "max_seconds", "max_samples")
_NOT_ASKED = (*_WHERE, *_HOW, *_BUDGET, "run", "print_completion", "overwrite")


def request_of(options: argparse.Namespace, *given: Any) -> str:
    """Return a hash of what is given and asked for, as this version understands it."""
    asked = sorted((name, value) for name, value in vars(options).items() if name not in _NOT_ASKED)
    return fingerprint_of("request", __version__, *given, asked)


def served(request: str, output: str) -> dict[str, Any] | None:
    """Return what a store states that was made for this request.

    Where there is none, or it is damaged, the job itself finds out what is to be done or said.
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
    """Return what a store states of itself, nothing where there is none."""
    attributes = (read_json(place_of(store) / METADATA) or {}).get("attributes")
    facts = attributes.get(ROOT_KEY) if isinstance(attributes, dict) else None
    return facts if isinstance(facts, dict) else {}
