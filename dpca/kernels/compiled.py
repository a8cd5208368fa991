"""Loops that numpy would make in several passes, compiled by numba.

Importing this module takes half a second, so that it is imported where such a loop begins. The machine code is kept in
numba's cache, beside the files or in the user's cache folder.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba


def compiled(function: Any) -> Any:
    """Compile a function for the types that it is called with, which lets go of Python's lock."""
    compile_with = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # there is no folder to keep it in
        return compile_with()(function)
