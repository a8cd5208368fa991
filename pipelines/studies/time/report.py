"""The report of a stack over time: modes, time functions, spectra, and what cells and bands explain beside them."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import zarr

from dpca.jobs.base.stages import StageCost
from dpca.kernels.algebra.types import Array
from dpca.models.base.store import write_model
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.pipelines.studies.runner import StackReport, write_array
from dpca.pipelines.studies.time.plots import functions_and_spectra, in_motion
from dpca.plots import comparison, eigenimages, explained_variance
from dpca.plots.panels import strongest
from dpca.report.page import DataTable
from dpca.report.record import write_report
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.input import samples_of_input
from dpca.storage.readers import Reader
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.remote.objects import Place
from dpca.storage.run import Run
from dpca.storage.stack import Stack
from dpca.storage.survey import ReadOptions
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.storage.transaction.workspace import Workspace
from dpca.timeseries import spectrum

KIND, VERSION = "time-report", 1
HOLISTIC = "whole samples"
# Frames that are shown beside their reconstructions, modes that are shown in motion.
_SHOWN, _MOVING = 4, 3
# The thesis's cells of volumes and bands of images and volumes (Alakkari 2020, section 6.4.4).
_CELL, _BAND, _LARGE_BAND, _LARGE = 10, 100, 1000, 100_000

_SECONDS = {"year": 365.2425 * 86400, "day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_STEPS = 13


@dataclass(frozen=True)
class TimeSettings:
    """What determines the report, beside the stack.

    Parameters
    ----------
    modes : int
    n_passes : int
        Over the stack for the modes; the second one measures exactly what they explain.
    segment : int, optional
        Samples of a segment of the spectra (Welch's method); default all.
    cell : int, optional
        Cell length along each spatial axis, default 10.
    band_size : int, optional
        Attributes of a band, default 100, and 1,000 where samples have more than 100,000.
    seed : int
    """

    modes: int = 9
    n_passes: int = 1
    segment: int | None = None
    cell: int | None = None
    band_size: int | None = None
    seed: int = 0


def report_time(
    given: Stack | Reader,
    output: str | os.PathLike[str],
    settings: TimeSettings,
    *,
    reading: ReadOptions | None = None,
    run: Run = Run(),
) -> tuple[dict[str, Any], bool]:
    """Find the modes of a stack, what they do over time, and write store, numbers and figures.

    Parameters
    ----------
    given : Stack or Reader
        Samples in the order of time; a reader is ingested, into the output.
    output : path-like
        Store to make: ``time_functions`` (sample, mode), ``power`` (frequency, mode) and ``frequency``, the ``model``,
        and the ingested ``stack``. The report goes to ``<output stem>.report``.
    settings : TimeSettings
    reading : ReadOptions, optional
        How the samples of a reader are read.
    run : Run
        Whether an output of other settings may be replaced, and how fits run.

    Returns
    -------
    report : dict
        Content of ``report.json``.
    already_done : bool

    Raises
    ------
    DataError, PlanError, StoreError
        One sentence each; a stopped run goes on inside the fit that it was at.

    Notes
    -----
    Reads the stack once for the modes (``n_passes`` times), once for the time functions, and once or twice for each
    kind of cells and bands.
    """
    # An error of the segment comes before any pass.
    spectrum(np.zeros((samples_of_input(given), 1)), segment=settings.segment)
    job = StackReport(KIND, VERSION, given, output, settings, reading, run.overwrite)

    def write(work: Workspace, stack: Stack, ingest: StageCost) -> None:
        stages = {"ingest": asdict(ingest)} if ingest.bytes else {}

        def fitted(model: Any, name: str) -> Any:
            run.say(f"{name} ...")
            began = time.perf_counter()
            kept = Checkpoints(f"{work.scratch}/fits/{name.replace(' ', '-')}")
            model.fit(stack, run=replace(run, checkpoints=kept))
            seconds = time.perf_counter() - began
            stages[name] = {"seconds": seconds, "bytes": stack.nbytes, "peak_memory": peak_resident_bytes()}
            return model

        model = fitted(StreamingPCA(settings.modes, n_passes=settings.n_passes, random_state=settings.seed), HOLISTIC)
        scores = np.asarray(model.transform(stack).compute())
        curves = {HOLISTIC: explained_curve(model)}
        for name, part in _parts(stack, settings).items():
            curves[name] = explained_curve(fitted(part, name))
        found = _Found(model, scores, *_times(stack), curves)
        write_model(model, work.store / "model", work.fingerprint)
        _write_arrays(job.create_root(work), found, settings)
        _write_report(job.folder, stack, found, settings, stages)

    return job.make(write, run)


@dataclass(frozen=True, eq=False)
class _Found:
    """What the report is made of; ``unit`` is that of ``times``, which count from ``since`` where that is known."""

    model: StreamingPCA
    scores: Array
    times: Array
    unit: str
    since: str
    curves: dict[str, Array]

    def spectrum(self, segment: int | None) -> Any:
        """Return the spectra of the time functions: of their steps where the times are uneven."""
        try:
            return spectrum(self.scores, model=self.model, time=self.times, segment=segment), self.unit
        except DataError:
            return spectrum(self.scores, model=self.model, segment=segment), ""


def _parts(stack: Stack, settings: TimeSettings) -> dict[str, Any]:
    """Return the unfitted models of parts, by their names: of cells where samples have axes of space."""
    shape, axes, seed = stack.sample_shape, stack.axes[1:], settings.seed
    spatial = tuple(length for length, axis in zip(shape, axes, strict=True) if axis != CHANNEL)
    size = settings.band_size or (_LARGE_BAND if math.prod(shape) > _LARGE else _BAND)
    size = min(size, math.prod(shape))
    found: dict[str, Any] = {}
    most = min(settings.modes, stack.n_samples - 1)
    if len(spatial) > 1:
        cell = tuple(min(settings.cell or _CELL, length) for length in spatial)
        k = min(most, math.prod(cell))
        found[f"cells {' x '.join(map(str, cell))}"] = CellPCA(k, cell_shape=cell)
    k = min(most, size)
    for mapping, words in (
        ("mean-variance", "by mean and variance"),
        ("raster", "in raster order"),
        ("random", "at random"),
    ):
        if mapping != "raster" or len(spatial) == 1:
            found[f"bands {words}"] = BandPCA(k, band_size=size, mapping=mapping, random_state=seed)
    return found


def explained_curve(model: Any) -> Array:
    """Return the share of the variance that the first components explain, of all parts of a fitted model."""
    variances = model.explained_variance_.reshape(-1, model.explained_variance_.shape[-1]).sum(axis=0)
    curve: Array = np.cumsum(variances) / max(float(np.sum(model.total_variance_)), 1e-300)
    return curve


def _times(stack: Stack) -> tuple[Array, str, str]:
    """Return the times of the samples, their unit, and the date that they count from: numbers where none are known.

    Times since a date are stated in the largest unit of which a step is a thirteenth or more: months in years.
    """
    along = stack.coordinates
    found = None if along is None else along.arrays.get(along.dims[0])
    if found is None or found.values.dtype.kind not in "iuf" or found.values.ndim != 1:
        return np.arange(stack.n_samples, dtype=np.float64), "", ""
    times, (unit, _, since) = found.values.astype(np.float64), found.attributes.get("units", "").partition(" since ")
    if not (since and (given := unit.strip().lower().removesuffix("s")) in _SECONDS and len(times) > 1):
        return times, unit, ""
    step = _SECONDS[given] * float(np.abs(np.diff(times)).mean())
    unit = next((name for name, seconds in _SECONDS.items() if step >= seconds / _STEPS), given)
    return times * (_SECONDS[given] / _SECONDS[unit]), unit, since.strip().removesuffix(" 00:00:00")


def _write_arrays(group: zarr.Group, found: _Found, settings: TimeSettings) -> None:
    spectra, _ = found.spectrum(settings.segment)
    write_array(group, "time_functions", found.scores, ("sample", "mode"))
    write_array(group, "frequency", spectra.frequencies, ("frequency",))
    write_array(group, "power", spectra.power, ("frequency", "mode"))


def _write_report(folder: Place, stack: Stack, found: _Found, settings: TimeSettings, stages: Any) -> None:
    model, (spectra, unit) = found.model, found.spectrum(settings.segment)
    shares = model.explained_variance_ratio_
    rows = [
        (str(mode + 1), f"{share:.2%}", f"{shares[: mode + 1].sum():.2%}", f"{peak:.4g}", f"{1 / peak:.4g}")
        for mode, (share, peak) in enumerate(zip(shares, spectra.peaks, strict=True))
    ]
    per = unit or "sample"
    head = ("mode", "variance", "in all", f"peak, cycles per {per}", f"period, {unit or 'samples'}")
    report = {
        **model.report_numbers(),
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        "components": model.n_components_,
        "peaks": spectra.peaks,
        "peaks_per": per,
        "curves": found.curves,
        "settings": asdict(settings),
        "rejected": stack.rejected,
        "source": stack.source,
        "stages": stages,
    }
    figures, captions = _figures(stack, found, spectra, unit)
    write_report(
        folder,
        report,
        figures,
        title=f"Modes of {stack.source.get('name') or 'a stack'} over time",
        captions=captions,
        tables=[DataTable("Modes", head, rows)],
    )


def _figures(stack: Stack, found: _Found, spectra: Any, unit: str) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    model, axes = found.model, stack.axes[1:]
    shares = model.explained_variance_ratio_
    along = stack.coordinates
    # The north is at the top of a map.
    turned = () if along is None else along.northward
    modes = np.flip(model.components_.reshape(-1, *stack.sample_shape), turned)
    times = found.times if unit or not found.unit else np.arange(stack.n_samples)
    figures: dict[str, Any] = {
        "time_functions": functions_and_spectra(
            times, found.scores, spectra.frequencies, spectra.power, shares=shares, unit=unit, since=found.since
        ),
        "modes": eigenimages(modes, len(modes), axes=axes, explained_variance_ratio=shares),
    }
    captions = {
        "time_functions": (
            "Time functions",
            "What each mode does over time, and the amplitude of its spectrum, each scaled on its own. Under its "
            "number is the share of the variance that it explains.",
        ),
        "modes": (
            "Modes",
            "Where each mode is positive (red) and negative (blue), each scaled on its own; of volumes the middle "
            "slice. The sign is free.",
        ),
    }
    spatial = count_spatial(axes)
    if spatial > 2:
        flat = np.stack([strongest(mode if axes[-1] != CHANNEL else mode.mean(axis=-1)) for mode in modes])
        figures["modes_projected"] = eigenimages(flat, len(flat), explained_variance_ratio=shares)
        captions["modes_projected"] = (
            "Modes, projected",
            "Of each line along the first axes of the volume the value that is farthest from zero, with its sign.",
        )
    if spatial > 1 and axes[-1] != CHANNEL:
        figures["modes_in_motion"] = in_motion(modes[:_MOVING], found.scores[:, :_MOVING], axes=axes)
        captions["modes_in_motion"] = (
            "Modes in motion",
            f"The first {min(_MOVING, len(modes))} modes as their time functions move them, and last their sum; the "
            "line below is time. Of volumes the projections.",
        )
    places = np.linspace(0, stack.n_samples - 1, min(_SHOWN, stack.n_samples)).round().astype(int)
    frames = np.stack([np.asarray(stack.samples[int(place)]) for place in places]).astype(np.float64)
    rebuilt = model.inverse_transform(found.scores[places])
    frames, rebuilt = np.flip(frames, turned), np.flip(rebuilt, turned)
    limits = (float(frames.min()), float(frames.max()))
    if limits[0] < limits[1]:
        names = [f"{found.times[place]:g} {found.unit}".strip() for place in places]
        figures["frames"] = comparison(frames, rebuilt, names, None, limits, axes=axes)
        captions["frames"] = (
            "Frames and reconstructions",
            f"Frames beside what {len(modes)} modes give back of them, and the difference around gray, amplified as "
            "its heading says.",
        )
    figures["explained_variance"] = explained_variance(found.curves, emphasized=HOLISTIC)
    captions["explained_variance"] = (
        "Explained variance",
        "Share of the variance that the first components explain: of whole samples, and of every cell or band. Each "
        "part keeps as many scores as a whole sample does, and so they explain more.",
    )
    return figures, captions
