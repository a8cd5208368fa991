"""Accelerators: find one, send samples to it, and check the precision of its matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

from dpca.kernels.algebra.namespace import namespace
from dpca.kernels.algebra.types import Array
from dpca.storage.remote.memory import usable_bytes

# With ten bits of mantissa, a product of matrices of this size and value is too small by a factor of 1 - 2**-11.
_PROBE_SIZE, _PROBE = 256, 1 + 2.0**-12


@dataclass(frozen=True)
class Device:
    """A device of torch or CuPy.

    Parameters
    ----------
    library : {"torch", "cupy"}
    name : str
        Name in the library, "cuda:0". With torch also "cpu", which tests the same code without an accelerator.
    model : str
        Product name.
    """

    library: str
    name: str
    model: str

    def send(self, samples: Array) -> Array:
        """Return samples as an array on the device; torch's "cpu" shares the memory of numpy."""
        if self.library == "torch":
            import torch

            sent: Any = torch.asarray(samples, device=self.name)
        else:
            import cupy

            sent = cupy.asarray(samples)
        return cast("Array", sent)

    def free_bytes(self) -> int:
        """Return the number of bytes that a fold may use now."""
        if self.library == "cupy":
            import cupy

            free: int = cupy.cuda.Device().mem_info[0]
        elif self.name == "cpu":
            return usable_bytes()
        else:
            import torch

            free = torch.cuda.mem_get_info(self.name)[0]
        # The rest is for the allocator, and for the workspace of products and eigensolvers.
        return int(0.8 * free)

    def check_products(self) -> None:
        """Reject a library that computes float32 products with reduced precision, such as TF32.

        Raises
        ------
        ValueError
            The message contains the setting for full precision.
        """
        x = self.send(np.full((_PROBE_SIZE, _PROBE_SIZE), _PROBE, np.float32))
        share = float(namespace(x).matmul(x, x)[0, 0]) / (_PROBE_SIZE * _PROBE**2)
        if abs(share - 1) > 2.0**-16:
            setting = "torch.set_float32_matmul_precision('highest')" if self.library == "torch" else "CUPY_TF32=0"
            raise ValueError(
                f"float32 products on {self.name} have a relative error of {abs(share - 1):.1e}, as with TF32: "
                f"covariances require full float32 precision, set {setting}"
            )


def find_device() -> Device | None:
    """Return the accelerator that torch or CuPy finds on this machine; None without an accelerator or library."""
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
