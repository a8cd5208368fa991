"""The ``dpca`` command. Each subcommand is a thin wrapper over functions that the pipelines also call."""

from __future__ import annotations

from collections.abc import Sequence

from dpca.cli.starting import start

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dpca`` and return its exit code (see `dpca.cli.running`)."""
    if argv is None:
        start("__main__")
    from dpca.cli.program import run

    return run(argv)
