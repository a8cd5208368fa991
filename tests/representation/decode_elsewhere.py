"""Print a digest of everything that is read of compressed stores, as `test_processors` has it done on other processors.

``python decode_elsewhere.py STORE ...``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import zarr
from numpy.typing import NDArray

import dpca

# Samples that are read alone, and across the ends of runs; and a box of them, which ends within cells.
ROWS, BOX = ([5], [3, *range(10, 45), 90]), (slice(5, 9), slice(3, 17))


def read(path: str) -> Iterator[NDArray[np.generic]]:
    """Yield the whole of a store, and what was read of it in parts: equal to its parts."""
    store = dpca.open_compressed(path)
    yield store[...]
    yield zarr.open_array(f"dpca::{path}", mode="r")[...]
    for rows in ROWS:
        yield store[rows]
        yield store[(rows, *BOX)]


def digests(path: str) -> list[str]:
    """Return a hash of each."""
    return [blake2b(np.ascontiguousarray(values).tobytes(), digest_size=8).hexdigest() for values in read(path)]


if __name__ == "__main__":
    print(json.dumps([digests(path) for path in sys.argv[1:]]))
