"""How many threads BLAS takes in this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy  # noqa: F401
import scipy.linalg  # noqa: F401  (numpy and scipy have a BLAS each)
from threadpoolctl import ThreadpoolController


def blas_libraries() -> list[Any]:
    """BLAS of numpy and scipy."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def blas_threads() -> list[int]:
    """Threads of each."""
    return [library.num_threads for library in blas_libraries()]


def set_blas_threads(numbers: Sequence[int]) -> None:
    """Set them by a thread that is gone afterwards: OpenBLAS obeys only the one that set a limit first."""

    def each() -> None:
        for library, number in zip(blas_libraries(), numbers, strict=True):
            library.set_num_threads(number)

    thread = threading.Thread(target=each)
    thread.start()
    thread.join()
