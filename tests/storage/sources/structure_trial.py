"""Try the hostile structures, one after the other: ``structure_trial.py FOLDER``.

Writes for each whether it became a stack, what was wrong with how it ended, and the megabytes that it took.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path

from tests.storage.sources.fuzz_trial import limit, trial
from tests.storage.sources.hostile_structures import SECRET, STRUCTURES


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def _one(name: str, folder: Path) -> tuple[bool, str, float]:
    (folder / "in").mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries warn when they write such files
        source = STRUCTURES[name](folder / "in")
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    try:
        fault = trial(source, folder)
    except BaseException:
        fault = traceback.format_exc()
    took, stack = _peak() - before, folder / "out-stop.zarr"
    if stack.exists() and (open_stack(stack).samples[:] == SECRET.flat[0]).any():
        fault = "it shows another file"
    return stack.exists(), fault, took


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    limit()
    warnings.filterwarnings("ignore", "Numcodecs codecs are not in the Zarr version 3 specification")
    from dpca.storage import open_stack

    ends = {name: _one(name, folder / str(i)) for i, name in enumerate(STRUCTURES)}
    (folder / "told.json").write_text(json.dumps(ends))
