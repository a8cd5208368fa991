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

if TYPE_CHECKING:
    from dpca.plots.charts import convergence, explained_variance, ssim_histogram
    from dpca.plots.components import cell_eigenvectors, eigenimages, rank_map
    from dpca.plots.maps import mode_maps
    from dpca.plots.rates import rate_chart
    from dpca.plots.samples import comparison, image_grid, reconstruction_ladder, worst_cases
    from dpca.plots.scores import scores_over_time, scores_scatter
    from dpca.plots.volumes import maximum_projections, volume_slices

_FOUND_IN = {
    "convergence": "charts",
    "explained_variance": "charts",
    "ssim_histogram": "charts",
    "cell_eigenvectors": "components",
    "eigenimages": "components",
    "rank_map": "components",
    "mode_maps": "maps",
    "rate_chart": "rates",
    "comparison": "samples",
    "image_grid": "samples",
    "reconstruction_ladder": "samples",
    "worst_cases": "samples",
    "scores_over_time": "scores",
    "scores_scatter": "scores",
    "maximum_projections": "volumes",
    "volume_slices": "volumes",
}

__all__ = [
    "cell_eigenvectors",
    "comparison",
    "convergence",
    "eigenimages",
    "explained_variance",
    "image_grid",
    "maximum_projections",
    "mode_maps",
    "rank_map",
    "rate_chart",
    "reconstruction_ladder",
    "scores_over_time",
    "scores_scatter",
    "ssim_histogram",
    "volume_slices",
    "worst_cases",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, because matplotlib takes a second to import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_FOUND_IN[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
