"""The report of a denoised stack: maps of the noise, what was removed, and whether that looks like noise."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpca import plots
from dpca.jobs.base.stages import StageCost
from dpca.jobs.denoising.residual import residual_of
from dpca.kernels.algebra.types import Array
from dpca.models.denoising.camera import FACTS, camera_in_words
from dpca.plots.given import samples_given
from dpca.plots.panels import range_of, spread_over
from dpca.report.page import DataTable
from dpca.report.record import write_report
from dpca.storage.arrays.reading import open_array
from dpca.storage.remote.objects import Place
from dpca.storage.stack import Stack

_SHOWN = 4
_CAPTIONS = {
    "maps": (
        "Noise",
        "The standard deviation of the noise, the mean number of components of the cells of a pixel, and the share of "
        "its variance that was removed. Of volumes, the middle slice is shown. The level of Poisson noise follows the "
        "brightness. Other noise that looks like the signal means that signal was taken for noise.",
    ),
    "residual": (
        "What was removed",
        "The residual in standard deviations of the noise. Independent noise has the same power at all frequencies, "
        "except the few that the signal has, too, and no correlation with its neighbors.",
    ),
    "comparison": ("Samples", "Samples, the denoised samples and what was removed."),
}


def write_denoising_report(
    folder: Place, stack: Stack, store: Place, maps: dict[str, Array], settings: dict[str, Any], cost: StageCost
) -> str:
    """Write the report of a denoised stack, and return the sentence that says whether the residual looks like noise.

    Parameters
    ----------
    folder : Path or ObjectPath
        The folder of the report.
    stack : Stack
        The samples with noise.
    store : Path or ObjectPath
        The store of the denoised samples.
    maps : dict of arrays
        ``sigma``, ``rank`` and ``removed``.
    settings : dict
        ``noise`` and ``cell_shape``, and the facts of the camera of Poisson noise.
    cost : StageCost
        Cost of the job.
    """
    clean = open_array(str(store / "samples"))
    residual = residual_of(stack, clean, maps["sigma"], settings["noise"], settings["cell_shape"])
    varies = maps["sigma"][maps["sigma"] > 0]
    described = {
        "standard deviation of the noise": varies,
        "components of a cell": maps["rank"],
        "share of the variance removed": maps["removed"],
    }
    rows = [(name, *_spread(values)) for name, values in described.items()]
    camera: dict[str, Any] = {name: settings[name] for name in FACTS if name in settings}
    shown = " x ".join(map(str, residual.shape))
    notes = [
        residual.verdict,
        f"the residual was measured on {shown} values; its variance is {residual.variance:.3f} times that of the noise",
    ]
    report = {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "job": "denoise",
        "settings": settings,
        "notes": notes,
        "noise": {
            "sigma": float(np.median(varies)) if varies.size else 0.0,
            "rank": float(maps["rank"].mean()),
            "removed": float(maps["removed"].mean()),
            **camera,
        },
        "residual": {
            "variance": residual.variance,
            "above": None if math.isnan(residual.above) else residual.above,
            "correlations": {name: float(along[0]) for name, along in residual.correlations.items()},
        },
        "stages": {"denoise": asdict(cost)},
    }
    figures = {
        "maps": plots.noise_maps(maps["sigma"], maps["rank"], maps["removed"], axes=stack.axes[1:]),
        "residual": plots.residual_chart(residual.power, residual.correlations),
        "comparison": _compared(stack, clean),
    }
    stated = (f"Camera: {camera_in_words(camera)}.",) if camera else ()
    table = DataTable("Noise", ("", "5 %", "median", "95 %"), rows, stated)
    name = f"Denoised {stack.source.get('name') or 'stack'}"
    write_report(folder, report, figures, title=name, captions=_CAPTIONS, tables=(table,))
    return residual.verdict


def _compared(stack: Stack, clean: Any) -> Figure:
    """Draw some samples, the denoised samples and their differences."""
    given, made, axes = samples_given(stack), samples_given(clean), stack.axes[1:]
    shown = spread_over(stack.n_samples, _SHOWN)
    before, after = (np.stack([np.asarray(one.overview(i)) for i in shown]) for one in (given, made))
    names = [str(stack.names[i]) for i in shown]
    bounds = range_of([before, after], None)
    return plots.comparison(before.astype(after.dtype), after, names, None, bounds, axes=axes, colors=given.colors)


def _spread(values: Array) -> tuple[str, ...]:
    """Return three percentiles as text."""
    return tuple(f"{value:.4g}" for value in np.percentile(values, (5, 50, 95))) if values.size else ("-",) * 3
