"""The core types that BLAS can be told to take this processor for, by what the processor can do.

``python tests/helpers/core_types.py Haswell SkylakeX`` prints those of them that it does not take it for by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from numpy._core._multiarray_umath import __cpu_features__
from threadpoolctl import threadpool_info

#: What OpenBLAS calls them in ``OPENBLAS_CORETYPE``, and what its code for them is made of, in numpy's words.
NEEDS = {
    "Prescott": ("SSE3",),
    "Sandybridge": ("AVX",),
    "Haswell": ("AVX2", "FMA3"),
    "Zen": ("AVX2", "FMA3"),
    "SkylakeX": ("AVX512_SKX",),
}


def usable(names: Iterable[str] = NEEDS) -> list[str]:
    """Return those core types whose instructions this processor has; none where it is no x86-64."""
    return [name for name in names if all(__cpu_features__.get(need, False) for need in NEEDS[name])]


def environment(core_type: str) -> dict[str, str]:
    """Return the environment of a program whose BLAS is to take its processor for another one."""
    return {**os.environ, "OPENBLAS_CORETYPE": core_type}


def taken() -> set[str]:
    """Return the core types that the BLAS of this process computes by."""
    return {info["architecture"] for info in threadpool_info() if info["internal_api"] == "openblas"}


if __name__ == "__main__":
    print(*(name for name in usable(sys.argv[1:]) if name not in taken()))
