"""The numbers of a report as text, for the terminal and for the page.

Every function takes a report as :mod:`dpca.report.record` describes it, converted to JSON values. Missing keys are left
out; null is shown as undefined. Names come from files and archives, so control characters and invalid Unicode in them
are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dpca.plots.numbers import counted, rounded_down, shape_words
from dpca.storage.disk import readable_size
from dpca.storage.errors import printable
from dpca.storage.ranges import range_words

NOTHING = "-"
# What the goals of compressed stores, and the targets of fits, ask for.
_ASKED = {
    "ratio": "a store at least {} times smaller than the decoded samples",
    "psnr": "a PSNR of at least {} dB",
    "mse": "a mean squared error of at most {}",
    "ssim": "an SSIM of at least {}",
    "max_error": "every value with an error of at most {}",
    "max_relative_error": "every value with an error of at most {} of the data range",
    "noise_share": "a mean squared error of at most {} of the variance of the noise",
}


class StageText(NamedTuple):
    """One line of the stage table, with its share of the total time (0..1); None in the line of the total."""

    name: str
    seconds: str
    rate: str
    memory: str
    share: float | None


class Highlight(NamedTuple):
    """A number to print in large type."""

    value: str
    label: str
    note: str


def lead(report: Mapping[str, Any]) -> str:
    """Describe the samples and the model in one sentence; empty if the report does not state them."""
    if not (report.get("samples") and report.get("sample_shape")):
        return ""
    parts = [f"{report['samples']:,} samples of {shape_words(report['sample_shape'])}"]
    if report.get("cells") and report.get("cell_shape"):
        parts.append(f"cut into {counted(report['cells'], 'cell')} of {shape_words(report['cell_shape'])}")
    if report.get("bands") and report.get("band_size"):
        parts.append(f"in {counted(report['bands'], 'band')} of at most {report['band_size']:,} attributes")
    if report.get("components"):
        each = " each" if report.get("cells") or report.get("bands") else ""
        parts.append(kept_components(report["components"], report.get("ranks"), "principal component") + each)
    sentence = ", ".join(parts)
    if report.get("method"):
        passes = f" in {counted(report['passes'], 'pass', 'passes')}" if report.get("passes") else ""
        sentence += f" by {report['method']}{passes}"
    return f"{sentence}."


def asked(report: Mapping[str, Any]) -> str:
    """Describe what was requested of the job; empty if the report does not state it."""
    if goal := report.get("goal"):
        every = ", in every sample" if goal.get("every_sample") else ""
        return _ASKED[goal["name"]].format(f"{goal['value']:g}") + every
    if target := report.get("target"):
        return _ASKED[target["name"].removeprefix("target_")].format(f"{target['asked']:g}")
    if ratio := _asked_ratio(report):
        return f"scores with {ratio:g} times fewer numbers than the samples"
    if not report.get("components"):
        return ""
    where = next((f" in each {name}" for name in ("cell", "band") if report.get(f"{name}s")), "")
    return kept_components(report["components"], report.get("ranks")) + where


def _asked_ratio(report: Mapping[str, Any]) -> float | None:
    """Return the requested ratio of scalars, if there is one."""
    return ((report.get("settings") or {}).get("model") or {}).get("ratio")


def result(report: Mapping[str, Any]) -> str:
    """Return what the job was run for, in a few words: how much smaller the samples are, or which scores there are."""
    known = [f"PSNR {_psnr(report)}"] if "psnr" in report else []
    if _has_bound(report):
        known = [f"largest error {_reached(report)}, promised {report['error_bound']:g}"]
    if (share := report.get("noise_share")) is not None:
        known = [f"{share:.2%} of the noise variance lost"]
    if not (small := report.get("bytes_compressed")):
        known += [f"mean SSIM {_ssim(mean)}"] if (mean := report.get("ssim_mean")) is not None else []
        return ", ".join([f"scores of {counted(report.get('samples', 0), 'sample')}", *known])
    given, what = report.get("bytes_given"), "the input"
    if not given:
        given, what = report["bytes_decoded"], "the decoded samples"
    return ", ".join([f"{times_smaller(given / small)} than {what}", *known])


def size_warning(report: Mapping[str, Any]) -> str | None:
    """Return a warning if the output is larger than the input, else None."""
    given, parts = report.get("bytes_given"), dict(report.get("bytes_written") or {})
    written = parts.pop("total", 0)
    if given is None or written <= given:
        return None
    small, large = readable_size(given), readable_size(written)
    if "bytes_compressed" in report:
        if report["bytes_compressed"] <= given:
            return f"the output has {large}, more than the input with {small}: do not keep the stack"
        return (
            f"the output has {large}, more than the input with {small}: give a lower --quality, or compress more "
            f"samples together, because a store holds its components once"
        )
    largest = max(parts, key=lambda part: parts[part])
    smaller = "; dpca compress makes data smaller" if "cells" in report else ""
    return (
        f"the output has {large}, {readable_size(parts[largest])} of it {largest}, and the input {small}: scores and "
        f"model are numbers of 4 bytes, to work with{smaller}"
    )


def times_smaller(ratio: float) -> str:
    """Return a ratio of sizes in words, such as "2.1 times smaller" or "1.3 times larger"."""
    return f"{ratio:,.1f} times smaller" if ratio >= 1 else f"{1 / ratio:,.1f} times larger"


def kept_components(count: int, ranks: Mapping[str, Any] | None, name: str = "component") -> str:
    """Describe how many components are kept: ``count``, or the smallest and largest number if they differ."""
    return f"{_count(count, ranks)} {name}s" if ranks else counted(count, name)


def highlights(report: Mapping[str, Any]) -> list[Highlight]:
    """Return what was reached: a promised error, sizes and quality; quality comes before the sizes of scores."""
    quality, get = list[Highlight](), report.get
    sizes = [
        Highlight(times_smaller(ratio), "size", f"than {what}: {note}")
        for what, ratio, note in _byte_ratios(report)[:1]
    ]
    if _asked_ratio(report) and (ratio := get("scalars_ratio")) is not None:
        sizes = [Highlight(f"{ratio:,.1f} times fewer", "numbers", "scores than values of samples"), *sizes]
    if "psnr" in report:
        error = get("mse")
        quality.append(Highlight(_psnr(report), "PSNR", _noted("" if error is None else f"MSE {error:.3g}", report)))
    if (mean := get("ssim_mean")) is not None:
        low = get("ssim_min")
        note = _noted("" if low is None else f"worst {_ssim(low)}", report)
        quality.append(Highlight(_ssim(mean), "SSIM, mean", note))
    elif (share := get("explained_variance_ratio")) is not None:
        quality.append(Highlight(rounded_down(share, 2), "explained variance", ""))
    found = sizes + quality if "bytes_compressed" in report else quality + sizes
    if (share := get("noise_share")) is not None:
        found.insert(0, Highlight(f"{share:.2%}", "noise variance lost", asked(report)))
    if _has_bound(report):
        found.insert(0, Highlight(_reached(report), "largest error", f"promised at most {report['error_bound']:g}"))
    return found


def notes(report: Mapping[str, Any]) -> list[str]:
    """Return sentences for the reader."""
    return [printable(str(note)) for note in report.get("notes") or ()]


def summary(report: Mapping[str, Any], *, times: str = "x") -> list[tuple[str, str]]:
    """Return every number in the report as a row of label and value."""

    def shown(key: str, write: Callable[[Any], str] = "{:,}".format) -> str | None:
        return None if (value := report.get(key)) is None else write(value)

    part = next((f" in each {name}" for name in ("cell", "band") if report.get(f"{name}s")), "")
    of_total = " of the total" if "captured_bound" in report else ""
    in_bytes = [
        *(("ratio", f"{times_smaller(ratio)} than {what} ({note})") for what, ratio, note in _byte_ratios(report)),
        ("input size", shown("bytes_given", readable_size)),
        ("decoded size", shown("bytes_decoded", readable_size)),
    ]
    small = shown(
        "bytes_compressed", lambda size: f"{readable_size(size)} ({size / report['samples']:,.0f} bytes a sample)"
    )
    rows = [
        *_error_rows(report),
        *([*in_bytes[-2:], ("compressed size", small), *in_bytes[:-2]] if small else ()),
        ("samples", shown("samples")),
        ("sample shape", shown("sample_shape", lambda lengths: shape_words(lengths, times))),
        ("attributes", shown("attributes")),
        ("partition", shown("cells", lambda n: f"{counted(n, 'cell')}{_cell_words(report, times)}")),
        ("partition", shown("bands", lambda n: f"{counted(n, 'band')}{_band_words(report)}")),
        ("components", shown("components", lambda k: f"{_count(k, report.get('ranks'))}{part}{_mean(report)}")),
        ("method", shown("method", str)),
        ("passes", shown("passes")),
        *(() if small else in_bytes),
        (
            "asked",
            asked(report)
            if (report.get("goal") and not _has_bound(report)) or report.get("target") or _asked_ratio(report)
            else None,
        ),
        ("output size", shown("bytes_written", _written)),
        ("explained variance", shown("explained_variance_ratio", lambda share: rounded_down(share, 2) + of_total)),
        (
            "first components",
            shown("leading_ratios", lambda shares: ", ".join(f"{s:.2%}" for s in shares) + " of the variance"),
        ),
        ("certificate", _certificate(report["captured_bound"]) if "captured_bound" in report else None),
        (
            "certificate, estimated",
            shown(
                "captured_estimate",
                lambda s: f"{_of_the_best(rounded_down(s, 2))}, standard error {report['captured_estimate_error']:.2%}",
            ),
        ),
        ("MSE", shown("mse", "{:.3g} (values scaled to 0..1)".format)),
        ("PSNR", _with_range(_psnr(report), report) if "psnr" in report else None),
        *_ssim_rows(report),
        ("noise variance lost", shown("noise_share", "{:.3%}".format)),
        ("rejected", shown("rejected", _left_out)),
    ]
    return [(label, value) for label, value in rows if value]


def _byte_ratios(report: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Return what the output is compared with, the ratio and the sizes: first the input, if known, then the samples.

    Samples are omitted if they have the size of the input, up to the header of a file.
    """
    if (ratio := report.get("bytes_ratio")) is None:
        return []
    made = "compressed store" if "bytes_compressed" in report else "scores and model"
    given, decoded = report.get("bytes_given"), report.get("bytes_decoded")
    if not decoded:
        return [("the decoded samples", ratio, made)]
    compared = [("the input", given)] if given else []
    if not given or readable_size(given) != readable_size(decoded):
        compared.append(("the decoded samples", decoded))
    return [
        (what, ratio * size / decoded, f"{readable_size(size)}, {made} {readable_size(round(decoded / ratio))}")
        for what, size in compared
    ]


def _written(parts: Mapping[str, int]) -> str:
    each = ", ".join(f"{name} {readable_size(size)}" for name, size in parts.items() if name != "total")
    return f"{readable_size(parts['total'])} ({each})"


def stages(report: Mapping[str, Any]) -> list[StageText]:
    """Return every stage as a line, and the total as the last one if there are several."""
    recorded: Mapping[str, Mapping[str, Any]] = report.get("stages") or {}
    total = sum(stage.get("seconds") or 0.0 for stage in recorded.values())
    lines = []
    for name, stage in recorded.items():
        seconds, moved = stage.get("seconds"), stage.get("bytes")
        rate = f"{readable_size(moved / seconds)}/s" if seconds and moved else NOTHING
        share = (seconds or 0.0) / total if total else 0.0
        planned = stage.get("planned") or {}
        took = [_seconds(seconds), _size(stage.get("peak_memory"))]
        if planned:
            took = [
                f"{took[0]} ({_seconds(planned['seconds'])} planned)",
                f"{took[1]} ({_size(planned['memory'])} planned)",
            ]
        lines.append(StageText(printable(name), took[0], rate, took[1], share))
    if len(lines) > 1:
        peaks = [stage["peak_memory"] for stage in recorded.values() if stage.get("peak_memory") is not None]
        lines.append(StageText("total", _seconds(total), NOTHING, _size(max(peaks, default=None)), None))
    return lines


def rejected(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names and reasons of rejected samples, if the report lists them."""
    left_out = report.get("rejected")
    if not isinstance(left_out, list):
        return []
    return [(printable(str(name)), printable(str(reason))) for name, reason in left_out]


def _ssim_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "ssim_mean" not in report:
        return []
    if report["ssim_mean"] is None:
        return [("SSIM", "not defined for these samples")]
    rows = [("SSIM, mean", _with_range(_ssim(report["ssim_mean"]), report))]
    if report.get("ssim_min") is not None:
        name = report.get("ssim_min_name")
        whose = "" if name is None else f" ({printable(str(name))})"
        rows.append(("SSIM, worst", f"{_with_range(_ssim(report['ssim_min']), report)}{whose}"))
    return rows


def _has_bound(report: Mapping[str, Any]) -> bool:
    return report.get("error_bound") is not None and report.get("max_error") is not None


def _reached(report: Mapping[str, Any]) -> str:
    return f"{report['max_error']:.4g}"


def _error_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not _has_bound(report):
        return []
    name = report.get("max_error_name")
    whose = "" if name is None else f" (sample {printable(str(name))})"
    goal = report.get("goal") or {}
    relative = f" ({goal['value']:g} of the data range)" if goal.get("name") == "max_relative_error" else ""
    return [
        ("promised error, largest", f"{report['error_bound']:g}{relative}"),
        ("reached error, largest", f"{_reached(report)}{whose}"),
    ]


def _cell_words(report: Mapping[str, Any], times: str) -> str:
    """Describe shape, overlap and sharing of cells."""
    shape = f" of {shape_words(report['cell_shape'], times)}" if report.get("cell_shape") else ""
    overlap = f", overlap {report['overlap']:,}" if report.get("overlap") else ""
    return shape + overlap + (", shared components" if report.get("shared") else "")


def _band_words(report: Mapping[str, Any]) -> str:
    """Describe size and mapping of bands."""
    size = f" of at most {report['band_size']:,} attributes" if report.get("band_size") else ""
    return size + (f", mapped by {report['mapping']}" if report.get("mapping") else "")


def _count(count: int, ranks: Mapping[str, Any] | None) -> str:
    return f"{ranks['min']:,} to {ranks['max']:,}" if ranks else f"{count:,}"


def _mean(report: Mapping[str, Any]) -> str:
    ranks = report.get("ranks")
    return f", {ranks['mean']:.3g} on average, {ranks['total']:,} in all" if ranks else ""


def _certificate(bound: float | None) -> str:
    if bound is None:
        return "none: this method gives no bound in one pass; a second pass measures the captured variance"
    return f"at least {_of_the_best(rounded_down(bound, 2))}"


def _of_the_best(share: str) -> str:
    return f"{share} of the variance that the best components explain"


def _left_out(rejected: Any) -> str:
    count = rejected if isinstance(rejected, int) else len(rejected)
    return f"{count:,} left out" if count else "none"


def _ssim(value: float) -> str:
    return f"{value:.4f}"


def _psnr(report: Mapping[str, Any]) -> str:
    if report["psnr"] is None:
        return "infinite" if report.get("mse") == 0 else NOTHING
    return f"{report['psnr']:.1f} dB"


def _range_text(report: Mapping[str, Any]) -> str:
    return range_words(report["data_range"]) if report.get("data_range") else ""


def _with_range(value: str, report: Mapping[str, Any]) -> str:
    return f"{value} ({bounds})" if (bounds := _range_text(report)) else value


def _noted(note: str, report: Mapping[str, Any]) -> str:
    return ", ".join(part for part in (note, _range_text(report)) if part)


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:,.2f}" if seconds < 100 else f"{seconds:,.0f}"


def _size(size: int | None) -> str:
    return NOTHING if size is None else readable_size(size)
