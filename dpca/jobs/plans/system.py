"""What the speed of a machine depends on."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info

from dpca.kernels.algebra import integers, linalg
from dpca.storage.disk import readable_size
from dpca.storage.remote.memory import usable_bytes
from dpca.storage.remote.tasks import one_blas_thread

# Samples and attributes of the product that is timed, and the time that it is repeated for.
_SAMPLES, _ATTRIBUTES, _SECONDS = 4096, 300, 0.05


def system_facts() -> dict[str, Any]:
    """Return what the speed of this machine depends on, by name. Products are timed, which takes .2 s.

    Products are those of a covariance of 300 attributes, on one thread, in billions of multiplications a second.
    """
    libraries = [one for one in threadpool_info() if one["user_api"] == "blas"]
    blas = [f"{one['internal_api']} {one['version']} for {one.get('architecture')}" for one in libraries]
    bytes_ = np.random.default_rng(0).integers(0, 256, (_SAMPLES, _ATTRIBUTES), np.uint8)
    values, cross, total = bytes_.astype(np.float32), np.zeros((_ATTRIBUTES, _ATTRIBUTES)), np.zeros(_ATTRIBUTES)
    kernel = integers.kernel()
    with one_blas_thread():
        floats = _speed(lambda: linalg.gram_lower("product", values))
        exact = _speed(lambda: kernel.add_gram(bytes_, cross, total)) if kernel else None
    return {
        "dpca": version("dask-dpca"),
        "python": platform.python_version(),
        "processors": psutil.cpu_count(),
        "memory": readable_size(usable_bytes()),
        "blas": sorted(set(blas)),
        "float32_products": floats,
        "integer_products": exact,
        "instruction": kernel.INSTRUCTION.feature if kernel else None,
    }


def _speed(function: Callable[[], Any]) -> float:
    """Return the multiplications of a product in billions a second, of the fastest of some calls."""
    function()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return round(_SAMPLES * _ATTRIBUTES * (_ATTRIBUTES + 1) / 2 / best / 1e9, 1)
