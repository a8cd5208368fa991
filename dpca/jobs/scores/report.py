"""The report of the main job: numbers, collected from the stores, and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dpca import plots
from dpca.choices import COMPRESSED, NOISE_SHARE
from dpca.jobs.base.input_stack import compressed_bytes
from dpca.jobs.base.stages import StageRecord
from dpca.jobs.compressed.append_write import QUALITY
from dpca.kernels.algebra.types import Array
from dpca.kernels.pixels import Pixels
from dpca.kernels.quality import psnr_from_mse
from dpca.models.base.store import load_any
from dpca.plots.components import component_pictures
from dpca.plots.given import GivenSamples, boxes_of, curve_of, decoded_boxes, samples_given, shares_of, worst_first
from dpca.plots.overviews import LARGE_BYTES, overview
from dpca.plots.panels import range_of, shown_range, spread_over
from dpca.report.record import drawn, read_report, write_report
from dpca.report.words import size_warning
from dpca.representation.compressed.compressed import compressed_in
from dpca.storage.arrays.arrays import open_written
from dpca.storage.arrays.reading import array_in, open_array, root_facts
from dpca.storage.disk import bytes_at, folder_bytes
from dpca.storage.errors import StoreError
from dpca.storage.input import paths_of_input
from dpca.storage.integrity.manifest import CHECKSUMS
from dpca.storage.ranges import range_warning
from dpca.storage.readers import Reader
from dpca.storage.readers.masked import MaskedReader
from dpca.storage.remote.objects import Place
from dpca.storage.stack import Stack

# Number of samples in a comparison and of worst samples.
_SHOWN = 6
_MASKED = "mean errors and SSIM include the values outside the mask, which have no error"
# Facts about the job that a store of scores states.
_OF_THE_JOB = ("job", "settings", "target", "goal", "made_with")
# Numbers of the model that hold for a compressed store too.
_OF_CELLS = ("cells", "cell_shape", "overlap", "shared")


def write_job_report(
    given: Stack | Reader,
    stack: Stack,
    store: Place,
    model_path: Place,
    folder: Place,
    record: StageRecord | None,
    *,
    ssim: bool,
    parts: Sequence[str],
) -> dict[str, Any]:
    """Collect the numbers of a store of scores or codes, draw its pictures, write both, and return the numbers.

    Parameters
    ----------
    given : Stack or Reader
        The input of the job.
    stack : Stack
        The original samples.
    store : Path or ObjectPath
        The scores store or the compressed store.
    model_path : Path or ObjectPath
        The model that the store was made with.
    folder : Path or ObjectPath
        The folder of the report.
    record : StageRecord, optional
        The stages until now. The report is one, too. None if they are not known any more.
    ssim : bool
        Whether the SSIM was requested. If the store has none, the report calls it undefined.
    parts : sequence of str
        Names of the parts of the store. Parts that do not exist are left out.

    Raises
    ------
    StoreError
        If the report cannot be written or cannot be read back.
    """
    model, group = load_any(model_path), open_written(store)
    stated = root_facts(group)
    small = stated["kind"] == COMPRESSED
    facts = {name: value for name, value in stated.items() if name in _OF_THE_JOB}
    quality = {name: array_in(group, name)[...] for name in QUALITY if name in group}
    bounds = tuple(stated["data_range"])  # if the stack states no range, that of its values
    sizes = _sizes(given, stack, store, parts, small, keyed=bool((facts.get("settings") or {}).get("key")))
    numbers = {"mse_expected": model.expected_mse(bounds), **model.report_numbers()}
    if "max_error" in stated:
        facts["error_bound"] = stated["max_error"]
    if small:  # the store keeps fewer components than the model
        numbers = {name: value for name, value in numbers.items() if name in _OF_CELLS}
    report = {
        "samples": stack.n_samples,
        "sample_shape": stack.sample_shape,
        **numbers,
        **sizes,
        **facts,
        **quality_numbers(stack.names, quality, ssim),
        "rejected": stack.rejected,
        "data_range": bounds,
        **({"notes": []} if record is None else record.numbers()),
    }
    if isinstance(given, MaskedReader) and quality:
        report["notes"].append(_MASKED)
    if warning := size_warning(report):
        report["notes"].append(warning)
    shown = {*spread_over(stack.n_samples, _SHOWN), *worst_first(quality)[:_SHOWN].tolist()}
    samples = samples_given(stack)
    originals = {i: samples.overview(i) for i in shown}
    spanned = range_of([np.asarray(sample) for sample in originals.values()], None)
    if warning := range_warning(spanned, bounds):
        report["notes"].append(warning)
    title = f"{model.report_title} of {stack.source.get('name') or 'a stack'}"
    decode = _decoder(store, model, Pixels(stack.dtype, bounds), small, stack)
    figures = _figures(originals, bounds, stack, store, model, quality, report, decode)
    pictures = drawn(figures)
    if record is not None:
        record.note_own("report")
        report["stages"] = record.numbers()["stages"]
    write_report(folder, report, pictures, title=title)
    if (written := read_report(folder)) is None:
        raise StoreError(f"the report in '{folder}' cannot be read back: remove that folder and run again")
    return written


def _decoder(store: Place, model: Any, pixels: Pixels, small: bool, stack: Stack) -> Callable[[Sequence[int]], Array]:
    """Return a function that returns the reconstructions of some samples, as they are pictured."""
    shape, axes, units = stack.sample_shape, stack.axes[1:], None
    if small:
        opened = compressed_in(open_written(store), os.fspath(store))
        boxes: Any = boxes_of(opened)
        units = opened.chunks[1:]
    else:
        scores = open_array(store / "scores")
        boxes = decoded_boxes(model.basis_, scores, scores.shape[-1], pixels)
    if boxes is not None and stack.nbytes // stack.n_samples > LARGE_BYTES:
        of_one = stack.dtype.itemsize
        return lambda indices: np.stack([overview(partial(boxes, i), shape, of_one, axes, units) for i in indices])
    if small:
        return lambda indices: np.asarray(opened[list(indices)])
    return lambda indices: model.basis_.decode(np.stack([np.asarray(scores[i]) for i in indices]), pixels=pixels)


def _sizes(
    given: Stack | Reader, stack: Stack, store: Place, parts: Sequence[str], small: bool, *, keyed: bool
) -> dict[str, Any]:
    # Without lists of checksums, which a store gets only when it is finished.
    written: dict[str, int] = {
        part: folder_bytes(store / part, besides=CHECKSUMS) for part in parts if (store / part).exists()
    }
    if small:
        written["compressed"] = compressed_bytes(store)
    return {
        **({"bytes_compressed": written["compressed"]} if small else {}),
        "bytes_ratio": stack.nbytes / (written["compressed"] if small else written["scores"] + written["model"]),
        # A file with several arrays is larger than the one that was read.
        "bytes_given": None if keyed and isinstance(given, Reader) else bytes_at(paths_of_input(given)),
        "bytes_decoded": stack.nbytes,
        "bytes_written": {**written, "total": sum(written.values())},
    }


def quality_numbers(names: Sequence[str] | Array, quality: Mapping[str, Array], ssim: bool) -> dict[str, Any]:
    """Return the errors of samples for a report; ``ssim`` states whether the SSIM was requested."""
    mean = quality["mse"].mean()
    numbers: dict[str, Any] = {"mse": float(mean), "psnr": float(psnr_from_mse(mean))}
    if (values := quality.get("ssim")) is not None:
        worst = int(values.argmin())
        found = (float(values.mean()), float(values[worst]), str(names[worst]))
        numbers |= dict(zip(("ssim_mean", "ssim_min", "ssim_min_name"), found, strict=True))
    elif ssim:
        numbers |= dict.fromkeys(("ssim_mean", "ssim_min", "ssim_min_name"))
    if (errors := quality.get("max_error")) is not None:
        worst = int(errors.argmax())
        numbers |= {"max_error": float(errors[worst]), "max_error_name": str(names[worst])}
    if (shares := quality.get(NOISE_SHARE)) is not None:
        numbers[NOISE_SHARE] = float(shares.mean(dtype=np.float64))
    return numbers


def _figures(
    originals: Mapping[int, Any],
    bounds: tuple[float, float],
    stack: Stack,
    store: Place,
    model: Any,
    quality: Mapping[str, Array],
    report: Mapping[str, Any],
    decode: Callable[[Sequence[int]], Array],
) -> dict[str, Figure]:
    basis, axes, ssim, samples = model.basis_, stack.axes[1:], quality.get("ssim"), samples_given(stack)

    # Both figures often show the same samples, which take long to decode if they are large.
    decoded = dict(zip(originals, decode(list(originals)), strict=True))

    def shown(indices: Sequence[int]) -> Figure:
        some, rebuilt = {i: originals[i] for i in indices}, np.stack([decoded[i] for i in indices])
        return pictured(some, rebuilt, stack.names, ssim, bounds, samples)

    whole, shares = len(basis.score_shape) == 1, None
    figures = {
        "comparison": shown(spread_over(stack.n_samples, _SHOWN)),
        "worst": shown(worst_first(quality)[:_SHOWN].tolist()),
    }
    if component_pictures(model, 1) is not None:
        shares = shares_of(model)
        name, drawn = ("eigenimages", plots.eigenimages) if whole else ("eigenfaces", plots.cell_eigenvectors)
        figures[name] = drawn(model, axes=axes)
        if "ranks" in report:
            figures["ranks"] = plots.rank_map(model, axes=axes)
        curve = curve_of(model)
        if np.isfinite(curve).any():
            figures["explained_variance"] = plots.explained_variance(curve, parts=f"{model.part_name}s")
    if whole:
        stored = open_array(store / "scores")
        figures["scores"] = plots.scores_scatter(stored, explained_variance_ratio=shares)
    if ssim is not None:
        figures["ssim_histogram"] = plots.ssim_histogram(ssim)
    return figures


def pictured(
    originals: Mapping[int, Any],
    rebuilt: Array,
    names: Sequence[str] | Array,
    ssim: Array | None,
    data_range: tuple[float, float],
    given: GivenSamples,
) -> Figure:
    """Draw samples with their reconstructions; ``names`` and ``ssim`` are those of all samples."""
    values, called = None if ssim is None else ssim[list(originals)], [str(names[i]) for i in originals]
    samples = np.stack([np.asarray(sample) for sample in originals.values()])
    bounds = shown_range(list(samples), samples.dtype, data_range)
    return plots.comparison(samples, rebuilt, called, values, bounds, axes=given.axes, colors=given.colors)
