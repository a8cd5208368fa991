"""Compiles loops with numba that would need several passes in numpy.

Importing this module takes half a second. It is therefore imported only by functions that need such a loop. numba
caches the machine code beside the source files or in the user's cache folder.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba


def compiled(function: Any, **options: Any) -> Any:
    """Compile a function for the types of its arguments. The compiled function releases Python's global lock."""
    compile_with = partial(numba.njit, nogil=True, error_model="numpy", **options)
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # no cache folder is writable
        return compile_with()(function)


def reordered(function: Any) -> Any:
    """Compile a function as `compiled`, with sums in the order that suits the processor, as in BLAS."""
    return compiled(function, fastmath={"reassoc", "contract"})
