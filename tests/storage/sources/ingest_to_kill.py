"""A slow ingest in a process of its own, for `test_ingest` to kill.

``python ingest_to_kill.py SOURCE TARGET ON_ERROR [KEEP]`` prints "ready" when it begins.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from dpca.storage.arrays.layout import Layout
from dpca.storage.run import Run
from dpca.storage.survey import ReadOptions


def small_shards(shape: Sequence[int], itemsize: int, axes: Sequence[str], cell_shape: Any = None, *_: Any) -> Layout:
    """Cut a stack into many shards, however small it is."""
    return Layout((2, *shape[1:]), (4, *shape[1:]))


def main(source: str, target: str, on_error: Any, keep: str = "") -> None:
    """Ingest with a pause in every task."""
    # the module, which the function of the same name hides in the package
    ingest: Any = importlib.import_module("dpca.storage.ingest")
    writer: Any = importlib.import_module("dpca.storage.decoded_shard")
    ingest.choose_layout = small_shards

    def slowly(convert: Any) -> Any:
        def slow(*args: Any, **named: Any) -> Any:
            time.sleep(0.002)
            return convert(*args, **named)

        return slow

    writer.decode, writer.kept_sample = slowly(writer.decode), slowly(writer.kept_sample)
    print("ready", flush=True)
    ingest.ingest(source, target, reading=ReadOptions(on_error=on_error, keep_jpegs=bool(keep)), run=Run(threads=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
