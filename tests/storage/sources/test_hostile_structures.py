"""Sources that are hostile in their structure end in a stack or one sentence, in little memory, and lead nowhere.

Memory is what the process took beyond what it had, by the kernel's own count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.sources.hostile_structures import STRUCTURES

pytestmark = pytest.mark.fuzz

#: Megabytes for sources of some hundred kilobytes; a picture may have 512 by design, and here has 20.
MOST = 150
#: What is read as it is: sound, or wrong in nothing that a reader could know.
STACKS = {
    "HDF5: a small bomb in a chunk",
    "HDF5: the smallest factor",
    "HDF5: a range of NaN",
    "netCDF-3: as it should be",
    "netCDF-3: dimensions by the thousand",
    "netCDF-3: one name for two",
    "netCDF-3: a name that is none",
    "DCD: as it should be",
    "DCD: frames by the billion",
    "DCD: frames below none",
    "DCD: a cell that is not there",
    "DCD: frames of marks alone",
    "TIFF: OME as it should be",
    "TIFF: directories without end",
    "TIFF: XML that breaks off",
    "TIFF: pages in a circle",
    "zip: one name for two",
    "zip: names that differ by case",
    "zip: a bomb behind a picture",
    "zip: a zip in a zip",
    "zip: members by the billion",
    "tar: one name for two",
    "tar: much padding",
    "tar: a bomb behind a picture",
    "tar: a bomb that is no picture",
}


def test_structures_end_in_a_stack_or_a_sentence(tmp_path: Path) -> None:
    trial = Path(__file__).with_name("structure_trial.py")
    done = subprocess.run([sys.executable, trial, tmp_path], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    ends = json.loads((tmp_path / "told.json").read_text())
    assert set(ends) == set(STRUCTURES)
    assert {name for name, (stack, *_) in ends.items() if stack} == STACKS
    assert not {name: fault for name, (_, fault, _) in ends.items() if fault}
    assert not {name: memory for name, (_, _, memory) in ends.items() if memory > MOST}
