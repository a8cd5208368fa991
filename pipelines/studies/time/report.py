"""The report of a stack over time: modes, time series, spectra, and the explained variance of cells and bands."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dpca.kernels.algebra.types import Array
from dpca.models.base.store import write_model
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.streaming.streaming_pca import StreamingPCA
from dpca.pipelines.studies.programs import option, seed_option
from dpca.pipelines.studies.runner import Picture, StudyJob, stack_report, write_array
from dpca.pipelines.studies.time.plots import functions_and_spectra, in_motion
from dpca.plots import comparison, eigenimages, explained_variance
from dpca.plots.panels import spread_over, strongest
from dpca.report.page import DataTable
from dpca.storage.arrays.layout import CHANNEL, count_spatial
from dpca.storage.errors import DataError
from dpca.storage.readers import Reader
from dpca.storage.remote.memory import peak_resident_bytes
from dpca.storage.stack import Stack
from dpca.storage.transaction.checkpoints import Checkpoints
from dpca.timeseries import spectrum

HOLISTIC = "whole samples"
#: Mappings of attributes to bands, and their names in tables and figures.
MAPPINGS = {"mean-variance": "by mean and variance", "raster": "in raster order", "random": "at random"}
# Frames that are shown beside their reconstructions, and modes that are shown in motion.
_SHOWN, _MOVING = 4, 3
# The thesis's cells of volumes and bands of images and volumes (Alakkari 2020, section 6.4.4).
_CELL, _BAND, _LARGE_BAND, _LARGE = 10, 100, 1000, 100_000

_SECONDS = {"year": 365.2425 * 86400, "day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_STEPS = 13


@dataclass(frozen=True)
class TimeSettings:
    """Everything that determines the report, beside the stack. `option` states each field and its option."""

    modes: int = option(9, "number of modes", "K")
    n_passes: int = option(
        1, "passes over the source for the modes; the second measures the variance that they explain", flag="passes"
    )
    segment: int | None = option(None, "samples of a segment of the spectra, Welch's method (default: all)")
    cell: int | None = option(None, f"length of a cell along each spatial axis (default: {_CELL})")
    band_size: int | None = option(
        None, f"attributes of a band (default: {_BAND}, and {_LARGE_BAND} for samples with more than {_LARGE:,})", "L"
    )
    seed: int = seed_option("seed of everything random")


def _check(settings: TimeSettings, given: Stack | Reader) -> None:
    n = given.n_samples if isinstance(given, Stack) else len(given)
    spectrum(np.zeros((n, 1)), segment=settings.segment)


@stack_report("time-report", 1, _check)
def report_time(job: StudyJob) -> None:
    """Find the modes of a stack and their time series, and write store, numbers and figures.

    Samples are in the order of time. The store has ``time_functions`` (sample, mode), ``power`` (frequency, mode) and
    ``frequency``, the ``model``, and the ingested ``stack``.

    Notes
    -----
    Reads the stack ``n_passes`` times for the modes, once for the time series, and once or twice for each kind of
    cells and bands. An interrupted run resumes within a fit.
    """
    stack, settings, work = job.stack, job.settings, job.work
    stages = {"ingest": asdict(job.ingest)} if job.ingest.bytes else {}

    def fitted(model: Any, name: str) -> Any:
        job.run.say(f"{name} ...")
        began = time.perf_counter()
        checkpoints = Checkpoints(f"{work.scratch}/fits/{name.replace(' ', '-')}")
        model.fit(stack, run=replace(job.run, checkpoints=checkpoints))
        seconds = time.perf_counter() - began
        stages[name] = {"seconds": seconds, "bytes": stack.nbytes, "peak_memory": peak_resident_bytes()}
        return model

    model = fitted(StreamingPCA(settings.modes, n_passes=settings.n_passes, random_state=settings.seed), HOLISTIC)
    scores = np.asarray(model.transform(stack).compute())
    curves = {HOLISTIC: explained_curve(model)}
    for name, part in _parts(stack, settings).items():
        curves[name] = explained_curve(fitted(part, name))
    times, unit, since = _times(stack)
    try:
        spectra, spectra_unit = spectrum(scores, model=model, time=times, segment=settings.segment), unit
    except DataError:  # the times are uneven: cycles per sample
        spectra, spectra_unit = spectrum(scores, model=model, segment=settings.segment), ""
    found = _Found(model, scores, times, unit, since, curves, spectra, spectra_unit)
    write_model(model, work.store / "model", work.fingerprint)
    group = job.create_root()
    write_array(group, "time_functions", scores, ("sample", "mode"))
    write_array(group, "frequency", spectra.frequencies, ("frequency",))
    write_array(group, "power", spectra.power, ("frequency", "mode"))
    _write_report(job, found, stages)


@dataclass(frozen=True, eq=False)
class _Found:
    """Content of the report. ``unit`` is the unit of ``times``, which count from the date ``since``, if it is known."""

    model: StreamingPCA
    scores: Array
    times: Array
    unit: str
    since: str
    curves: dict[str, Array]
    spectra: Any
    spectra_unit: str


def _parts(stack: Stack, settings: TimeSettings) -> dict[str, Any]:
    """Return unfitted models of cells, for samples with several spatial axes, and of bands, by their names."""
    shape, axes = stack.sample_shape, stack.axes[1:]
    spatial = tuple(length for length, axis in zip(shape, axes, strict=True) if axis != CHANNEL)
    size = settings.band_size or (_LARGE_BAND if math.prod(shape) > _LARGE else _BAND)
    size = min(size, math.prod(shape))
    found: dict[str, Any] = {}
    most = min(settings.modes, stack.n_samples - 1)
    if len(spatial) > 1:
        cell = tuple(min(settings.cell or _CELL, length) for length in spatial)
        found[f"cells {' x '.join(map(str, cell))}"] = CellPCA(min(most, math.prod(cell)), cell_shape=cell)
    for mapping, words in MAPPINGS.items():
        if mapping != "raster" or len(spatial) == 1:
            bands = BandPCA(min(most, size), band_size=size, mapping=mapping, random_state=settings.seed)
            found[f"bands {words}"] = bands
    return found


def explained_curve(model: Any) -> Array:
    """Return the share of the variance that the first components of all parts of a fitted model explain."""
    variances = model.explained_variance_.reshape(-1, model.explained_variance_.shape[-1]).sum(axis=0)
    curve: Array = np.cumsum(variances) / max(float(np.sum(model.total_variance_)), 1e-300)
    return curve


def _times(stack: Stack) -> tuple[Array, str, str]:
    """Return the times of the samples, their unit, and the date from which they count; numbers of samples if unknown.

    The unit of times since a date is the largest one of which a step is a thirteenth or more: months are in years.
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


def _write_report(job: StudyJob, found: _Found, stages: Any) -> None:
    model, spectra, unit = found.model, found.spectra, found.spectra_unit
    shares = model.explained_variance_ratio_
    rows = [
        (str(mode + 1), f"{share:.2%}", f"{shares[: mode + 1].sum():.2%}", f"{peak:.4g}", f"{1 / peak:.4g}")
        for mode, (share, peak) in enumerate(zip(shares, spectra.peaks, strict=True))
    ]
    per = unit or "sample"
    head = ("mode", "variance", "in all", f"peak, cycles per {per}", f"period, {unit or 'samples'}")
    report = {
        **model.report_numbers(),
        "components": model.n_components_,
        "peaks": spectra.peaks,
        "peaks_per": per,
        "curves": found.curves,
        "settings": asdict(job.settings),
        "rejected": job.stack.rejected,
        "stages": stages,
    }
    job.write_report("Modes of {} over time", report, _pictures(job.stack, found), [DataTable("Modes", head, rows)])


def _pictures(stack: Stack, found: _Found) -> dict[str, Picture]:
    model, axes, unit, spectra = found.model, stack.axes[1:], found.spectra_unit, found.spectra
    shares = model.explained_variance_ratio_
    along = stack.coordinates
    # The north is at the top of a map.
    turned = () if along is None else along.northward
    modes = np.flip(model.components_.reshape(-1, *stack.sample_shape), turned)
    times = found.times if unit or not found.unit else np.arange(stack.n_samples)
    pictures = {
        "time_functions": Picture(
            functions_and_spectra(
                times, found.scores, spectra.frequencies, spectra.power, shares=shares, unit=unit, since=found.since
            ),
            "Time series",
            "The scores of each mode over time, and the amplitude of its spectrum, each on its own scale. Under the "
            "number of a mode is the share of the variance that it explains.",
        ),
        "modes": Picture(
            eigenimages(modes, len(modes), axes=axes, explained_variance_ratio=shares),
            "Modes",
            "Red is positive and blue is negative, each mode on its own scale; of volumes the middle slice. The sign "
            "is arbitrary.",
        ),
    }
    spatial = count_spatial(axes)
    if spatial > 2:
        flat = np.stack([strongest(mode if axes[-1] != CHANNEL else mode.mean(axis=-1)) for mode in modes])
        pictures["modes_projected"] = Picture(
            eigenimages(flat, len(flat), explained_variance_ratio=shares),
            "Modes, projected",
            "The value farthest from zero, with its sign, of each line along the first axis of the volume.",
        )
    if spatial > 1 and axes[-1] != CHANNEL:
        pictures["modes_in_motion"] = Picture(
            in_motion(modes[:_MOVING], found.scores[:, :_MOVING], axes=axes),
            "Modes in motion",
            f"The first {min(_MOVING, len(modes))} modes times their time series, and last their sum; the line "
            "below is time. Volumes are projected.",
        )
    places = spread_over(stack.n_samples, _SHOWN)
    frames = np.stack([np.asarray(stack.samples[place]) for place in places]).astype(np.float64)
    rebuilt = model.inverse_transform(found.scores[places])
    frames, rebuilt = np.flip(frames, turned), np.flip(rebuilt, turned)
    limits = (float(frames.min()), float(frames.max()))
    if limits[0] < limits[1]:
        names = [f"{found.times[place]:g} {found.unit}".strip() for place in places]
        pictures["frames"] = Picture(
            comparison(frames, rebuilt, names, None, limits, axes=axes),
            "Frames and reconstructions",
            f"Frames, their reconstructions from {len(modes)} modes, and the difference around gray, amplified by the "
            "factor in its heading.",
        )
    pictures["explained_variance"] = Picture(
        explained_variance(found.curves, emphasized=HOLISTIC),
        "Explained variance",
        "Share of the variance that the first components explain: of whole samples, and of every cell or band. Each "
        "part has as many scores as a whole sample, so parts explain more.",
    )
    return pictures
