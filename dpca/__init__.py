"""Principal component analysis for image and volume stacks that do not fit in memory, on Dask and Zarr."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpca import analysis, metrics, plots, timeseries, torch
    from dpca.jobs.models.follow import follow
    from dpca.models import (
        CCA,
        EOF,
        MCA,
        PCA,
        BandPCA,
        CellPCA,
        Denoiser,
        KernelPCA,
        PatchCascade,
        PatchPCA,
        Progress,
        SpectralClustering,
        StreamingPCA,
        StreamingRidgeClassifier,
        TrajectoryPCA,
        open_compressed,
        open_scores,
    )
    from dpca.models.base.store import load_any as load
    from dpca.models.opening import open_store as open
    from dpca.representation.mask import Mask
    from dpca.storage.run import Run

__all__ = [
    "CCA",
    "EOF",
    "MCA",
    "PCA",
    "BandPCA",
    "CellPCA",
    "Denoiser",
    "KernelPCA",
    "Mask",
    "PatchCascade",
    "PatchPCA",
    "Progress",
    "Run",
    "SpectralClustering",
    "StreamingPCA",
    "StreamingRidgeClassifier",
    "TrajectoryPCA",
    "analysis",
    "follow",
    "load",
    "metrics",
    "open",
    "open_compressed",
    "open_scores",
    "plots",
    "timeseries",
    "torch",
]
__version__ = "1.0.0rc1"
# The names above that are modules.
_MODULES = ("analysis", "metrics", "plots", "timeseries", "torch")
# Those names that are not in `dpca.models`, by module and name.
_ELSEWHERE = {
    "Mask": "dpca.representation.mask:Mask",
    "Run": "dpca.storage.run:Run",
    "follow": "dpca.jobs.models.follow:follow",
    "load": "dpca.models.base.store:load_any",
    "open": "dpca.models.opening:open_store",
}


def __getattr__(name: str) -> Any:
    # Imported on first use. Their libraries take seconds, and a program cannot handle signals during imports.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, _, within = _ELSEWHERE.get(name, f"dpca.models:{name}").partition(":")
    found = import_module(f"dpca.{name}") if name in _MODULES else getattr(import_module(room), within)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    # Only public names: completion in a notebook shows nothing that was imported for this file.
    return [*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))]
