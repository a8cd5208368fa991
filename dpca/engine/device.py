"""Accelerators: which one is there, how samples get to it, and whether its products are what rules count on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from dpca.engine.memory import usable_bytes
from dpca.kernels.namespace import namespace
from dpca.kernels.types import Array

# A product of matrices of this size and of this value falls short by a factor of 1 - 2**-11 where ten bits are kept.
_PROBE_SIZE, _PROBE = 256, 1 + 2.0**-12


@dataclass(frozen=True)
class Device:
    """Memory that arrays of torch or CuPy lie in.

    Parameters
    ----------
    library : {"torch", "cupy"}
    name : str
        As the library calls it: "cuda:0"; torch has "cpu" too, which tests the same code where there is no accelerator.
    model : str
        What people call it.
    """

    library: str
    name: str
    model: str

    def send(self, samples: Array) -> Array:
        """Return samples as an array there; torch's "cpu" shares the memory of numpy."""
        if self.library == "torch":
            import torch

            sent: Any = torch.asarray(samples, device=self.name)
        else:
            import cupy

            sent = cupy.asarray(samples)
        return cast("Array", sent)

    def free_bytes(self) -> int:
        """Return how many bytes a fold may plan with now."""
        if self.library == "cupy":
            import cupy

            free: int = cupy.cuda.Device().mem_info[0]
        elif self.name == "cpu":
            return usable_bytes()
        else:
            import torch

            free = torch.cuda.mem_get_info(self.name)[0]
        # What allocators keep, and what products and eigensolvers take for themselves.
        return int(0.8 * free)

    def check_products(self) -> None:
        """Refuse a library that has been told to compute float32 products with fewer bits.

        Raises
        ------
        ValueError
            With the setting that makes them whole.
        """
        x = self.send(np.full((_PROBE_SIZE, _PROBE_SIZE), _PROBE, np.float32))
        share = float(namespace(x).matmul(x, x)[0, 0]) / (_PROBE_SIZE * _PROBE**2)
        if abs(share - 1) > 2.0**-16:
            setting = "torch.set_float32_matmul_precision('highest')" if self.library == "torch" else "CUPY_TF32=0"
            raise ValueError(
                f"float32 products on {self.name} are {share:.6f} of what they should be, as with TF32's ten bits: "
                f"covariances need all of float32, set {setting}"
            )


def find_device() -> Device | None:
    """Return the accelerator that torch or CuPy finds on this machine; None if there is none, or neither of them."""
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return Device("torch", "cuda:0", torch.cuda.get_device_name(0))
    if find_spec("cupy") is not None:
        import cupy

        try:
            model = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        except cupy.cuda.runtime.CUDARuntimeError:  # no driver, or no device
            return None
        return Device("cupy", "cuda:0", model)
    return None
