"""The ``dpca`` command: each subcommand is a thin wrapper over the functions that the pipelines call."""

from __future__ import annotations

from dpca.cli.main import main

__all__ = ["main"]
