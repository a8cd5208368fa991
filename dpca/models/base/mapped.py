"""Arrays in temporary files that are mapped to memory: the system writes them to disk if memory is short."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dpca.engine.clusters.private import private_folder
from dpca.kernels.algebra.types import Array
from dpca.storage.disk import require_free_space, writing_errors


def mapped_array(shape: tuple[int, ...], dtype: DTypeLike, what: str) -> Array:
    """Return an array of zeros in a file in the private folder. The file is removed with the last view of the array.

    Raises
    ------
    StoreError
        If the disk has too little space for ``what`` it is.
    """
    size, folder = math.prod(shape) * np.dtype(dtype).itemsize, private_folder()
    require_free_space(folder, size, what)
    with writing_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        if hasattr(os, "posix_fallocate"):
            # A disk that fills up is an error here, and would end the process at a write to the map.
            os.posix_fallocate(file.fileno(), 0, size)
        mapped = mmap.mmap(file.fileno(), size)
    return np.frombuffer(mapped, dtype).reshape(shape)


def release(array: Array | None) -> None:
    """Release the pages of a view of a `mapped_array`; other arrays remain as they are.

    Pages remain in the cache of files. Otherwise they would count as memory of this process.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    mapped = base.obj if isinstance(base, memoryview) else base
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)
