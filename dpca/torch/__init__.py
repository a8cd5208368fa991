"""PyTorch data sets and networks. They require ``pip install "dask-dpca[torch]"`` and are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpca.storage.errors import DataError

if TYPE_CHECKING:
    from dpca.torch.dataset import ScoresDataset
    from dpca.torch.rednet import RedNet

__all__ = ["RedNet", "ScoresDataset"]
_MODULES = {"RedNet": "rednet", "ScoresDataset": "dataset"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("torch")
    except ImportError:
        raise DataError(
            f'dpca.torch.{name} requires PyTorch, which is not installed: pip install "dask-dpca[torch]"'
        ) from None
    globals()[name] = found = getattr(import_module(f"dpca.torch.{_MODULES[name]}"), name)
    return found
