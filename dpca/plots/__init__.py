"""Figures of stacks, models and stores. Each function draws one matplotlib figure and returns it.

Input is an array (numpy, Dask, Zarr or xarray), a `dpca.storage.Stack`, an opened store or a path. Only the samples in
the figure are read. A fitted model may be given by its path, too. A notebook shows the figure at the end of a cell;
``figure.savefig("name.png")`` saves it. The figures do not use pyplot: its state and the style of other figures do not
change, and figures can be drawn in threads. Names of samples are drawn as plain text.

The colors are distinct for all kinds of color vision: red is positive, blue is negative, zero is white. Missing values
are light gray, and sand in photographs. If latitudes are known, the north is at the top.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # "as" exports the name
    from dpca.plots.charts import convergence as convergence
    from dpca.plots.charts import explained_variance as explained_variance
    from dpca.plots.charts import residual_chart as residual_chart
    from dpca.plots.charts import ssim_histogram as ssim_histogram
    from dpca.plots.components import cell_eigenvectors as cell_eigenvectors
    from dpca.plots.components import eigenimages as eigenimages
    from dpca.plots.components import rank_map as rank_map
    from dpca.plots.maps import mode_maps as mode_maps
    from dpca.plots.maps import noise_maps as noise_maps
    from dpca.plots.rates import rate_chart as rate_chart
    from dpca.plots.samples import comparison as comparison
    from dpca.plots.samples import image_grid as image_grid
    from dpca.plots.samples import reconstruction_ladder as reconstruction_ladder
    from dpca.plots.samples import worst_cases as worst_cases
    from dpca.plots.scores import scores_over_time as scores_over_time
    from dpca.plots.scores import scores_scatter as scores_scatter
    from dpca.plots.volumes import maximum_projections as maximum_projections
    from dpca.plots.volumes import volume_slices as volume_slices

_FUNCTIONS = {
    "charts": ("convergence", "explained_variance", "residual_chart", "ssim_histogram"),
    "components": ("cell_eigenvectors", "eigenimages", "rank_map"),
    "maps": ("mode_maps", "noise_maps"),
    "rates": ("rate_chart",),
    "samples": ("comparison", "image_grid", "reconstruction_ladder", "worst_cases"),
    "scores": ("scores_over_time", "scores_scatter"),
    "volumes": ("maximum_projections", "volume_slices"),
}
_MODULE_OF = {name: module for module, names in _FUNCTIONS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    # Imported on first use, because matplotlib takes a second to import.
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__") and name.endswith("__"))]
