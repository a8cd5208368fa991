"""The tables of the thesis, theirs beside ours, from the records of all strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.pipelines.studies.partitions.analogy import Analogy
from dpca.pipelines.studies.partitions.published import PUBLISHED, PublishedStrategy
from dpca.pipelines.studies.partitions.records import Record
from dpca.pipelines.studies.partitions.samples import ReportSamples
from dpca.pipelines.studies.partitions.settings import USUAL_HOLISTIC, Design, PartitionSettings
from dpca.pipelines.studies.partitions.strategies import HOLISTIC, RANDOM, RASTER, size_of
from dpca.pipelines.studies.partitions.tables import Bound, PartitionTable, Value

# Band size and number of intervals of the thesis (Alakkari 2020, section 4.5.3).
_THEIR_BANDS = (1875, 50)
_QUALITY = ("scalars_ratio", "bytes_ratio", "mse", "ssim", "held_out_mse", "held_out_ssim")
_THEIRS = ("theirs_ratio", "theirs_mse", "theirs_ssim")
_READING = (
    "The thesis is implemented as follows: the range of the means is divided into {intervals} intervals of equal "
    "width. The attributes of an interval are sorted by mean, or by variance, and every {size:,} of them are one band; "
    "the last band has the rest of the interval. {channels}Means and variances are estimated from random samples, one "
    "in each of equal parts of the training samples (the thesis: from one mini-batch)."
)
_TOGETHER = (
    "The channels of a pixel are in one band and are mapped by their averages (the thesis maps pixels by the red "
    "channel), unless a line says that they are apart. "
)
_WHOLE_FIT = "Processor time of the whole fit on all workers by the number of cells, reading included."


@dataclass(frozen=True)
class Findings:
    """Content of all tables.

    Attributes
    ----------
    settings : PartitionSettings
    plan : Design
    samples : ReportSamples
    records : dict of str to Record
        By the name of the strategy.
    analogy : Analogy
    """

    settings: PartitionSettings
    plan: Design
    samples: ReportSamples
    records: Mapping[str, Record]
    analogy: Analogy

    def cells(self) -> list[Record]:
        """Return the records of cells, the smallest first."""
        return [self.records[f"cells {size_of(cell)}"] for cell in self.plan.cells]

    def named(self, beginning: str) -> list[Record]:
        """Return the records of strategies with this beginning of their name."""
        return [record for name, record in self.records.items() if name.startswith(beginning)]

    def theirs(self, record: Record) -> PublishedStrategy:
        """Return the published numbers of a strategy, all None unless it ran with the published settings."""
        name = record.facts.name
        known = PUBLISHED[self.settings.compare].get(name, PublishedStrategy())
        same = (self.plan.band_size, self.settings.n_intervals) == _THEIR_BANDS or not name.startswith("bands")
        return known if same and known.components == record.facts.n_components else PublishedStrategy()

    def values(self, record: Record) -> dict[str, Value]:
        """Return the values of a strategy, by the keys of `COLUMNS`."""
        facts, stack, theirs = record.facts, self.samples.stack, self.theirs(record)
        coded = stack.n_samples * facts.kept * working_dtype(stack.dtype).itemsize + facts.model_bytes
        each = facts.seconds / facts.n_partitions
        return {
            "partitions": facts.n_partitions,
            "components": facts.n_components,
            "scalars_ratio": math.prod(stack.sample_shape) / facts.kept,
            "bytes_ratio": stack.nbytes / coded,
            "mse": facts.left if facts.exact else Bound(facts.left, "at most"),
            "pixel_mse": record.mean("training.pixel_mse"),
            "ssim": record.mean("training.ssim"),
            "held_out_mse": record.mean("held_out.mse"),
            "held_out_ssim": record.mean("held_out.ssim"),
            "cell_seconds": each if facts.whole else Bound(each, "at least"),
            "seconds": facts.seconds if facts.whole else Bound(facts.seconds, "at least"),
            "theirs_ratio": theirs.ratio,
            "theirs_mse": theirs.mse,
            "theirs_ssim": theirs.ssim,
            "theirs_cpu": theirs.cpu,
            "theirs_gpu": theirs.gpu,
        }

    def lines(self, records: Sequence[Record], *keys: str) -> list[tuple[str, dict[str, Value]]]:
        """Return the lines of a table of strategies, with the values of these keys."""
        return [(r.facts.name, {key: values[key] for key in keys}) for r in records for values in [self.values(r)]]


def all_tables(found: Findings) -> list[PartitionTable]:
    """Return the tables in the order of the page."""
    made = (first_example, cell_sizes, run_times, mappings, baselines, likeness)
    return [make(found) for make in made]


def conditions(found: Findings) -> list[str]:
    """Describe the columns of all tables."""
    plan, samples = found.plan, found.samples
    m, dtype = len(samples.measured["training"].values), samples.stack.dtype
    which = f"all {m:,}" if m == plan.n_training else f"{m:,} of them, spread over all"
    sentences = [
        "Tables and figures are numbered as in Alakkari 2020, chapter 4.",
        f"MSE: of all {plan.n_training:,} training samples, from the eigenvalues; intensities in 0..1.",
    ]
    if dtype.kind != "f":
        sentences.append(f"MSE of pixels, rounded and clipped, which reduces it slightly: of {which}.")
    if samples.has_ssim:
        sentences.append(f"SSIM: of {which}; uniform window of 7, the default of scikit-image.")
    else:
        sentences.append("SSIM is not defined for samples of this shape.")
    if "held_out" in samples.measured:
        sentences.append(
            f"Held out: {len(samples.measured['held_out'].values):,} of {plan.n_held_out:,} samples that no fit has "
            f"seen, one at random in each of equal parts of the stack. Related samples, such as photographs of one "
            f"person, can be on both sides."
        )
    sentences.append(
        f"Compression is counted twice: in scalars, attributes to scores of a sample, as in the thesis; in bytes, the "
        f"whole stack as {dtype} to its scores as {working_dtype(dtype)} and the model. Nothing is entropy-coded."
    )
    return sentences


def first_example(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.1: the middle cell size and whole samples."""
    cells, whole = found.cells()[found.plan.middle], found.records[HOLISTIC]
    keys = ("components", "mse", "held_out_mse", "scalars_ratio", "cell_seconds", "seconds", "theirs_mse", "theirs_cpu")
    lines = found.lines([cells, whole], *keys)
    lines[0][1]["theirs_mse"] = found.theirs(cells).first_mse or found.theirs(cells).mse
    lines[1][1]["cell_seconds"] = None
    text = (
        "CPU seconds: processor time of reading, arithmetic and eigenproblems on all workers. Whole samples by "
        "incremental SVD in one pass."
    )
    return PartitionTable("4.1", "A first example (table 4.1)", text, "", lines, _of_whole_samples(found))


def cell_sizes(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.2: cells of several sizes and whole samples."""
    keys = ("partitions", "components", *_QUALITY, "pixel_mse", "theirs_mse", "theirs_ssim", "theirs_ratio")
    lines = found.lines([*found.cells(), found.records[HOLISTIC]], *keys)
    text = f"As many components as possible with at least {found.settings.ratio:g} attributes per score."
    return PartitionTable("4.2", "Sizes of cells (table 4.2)", text, "", lines, _of_whole_samples(found))


def run_times(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.3: seconds per cell."""
    lines = found.lines(
        found.cells(), "partitions", "components", "cell_seconds", "seconds", "theirs_cpu", "theirs_gpu"
    )
    text = _WHOLE_FIT
    if found.settings.compare != "none":
        text += " Theirs: Intel Core 6700HQ at 2.6 GHz and GeForce GTX 960M, MATLAB, all samples."
    return PartitionTable("4.3", "Time of a cell (table 4.3)", text, "", lines, ("No GPU was measured.",))


def mappings(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.4: bands by every mapping and in raster order, and the largest cells."""
    plan = found.plan
    lines = found.lines([*found.named("bands"), found.cells()[-1]], "partitions", *_QUALITY, "seconds", *_THEIRS)
    text = f"Bands of at most {plan.band_size:,} attributes, {plan.band_components:,} components each."
    reading = _READING.format(
        intervals=found.settings.n_intervals, size=plan.band_size, channels=_TOGETHER if plan.has_channels else ""
    )
    return PartitionTable("4.4", "Mappings of attributes to bands (table 4.4)", text, "", lines, (reading,))


def baselines(found: Findings) -> PartitionTable:
    """Cells beside the cosine transform with as many coefficients, bands in raster order and whole samples."""
    records: list[Record] = []
    for record in found.cells():
        size = record.facts.name.removeprefix("cells")
        records += [record, *found.named(f"DCT{size},"), *found.named(f"DCT{size} and")]
    records += [found.records[RASTER], found.records[HOLISTIC]]
    text = (
        "The cosine transform of every cell, channel by channel unless a line says otherwise; the mean of the training "
        "samples is subtracted, as for components. Low frequencies: the same coefficients in every cell, in zigzag "
        "order, channels of a frequency together. Best set: those with the most variance in the training samples, "
        "chosen for every cell. No other set that is the same for all samples has a lower error. There is no entropy "
        "coding."
    )
    lines = found.lines(records, "components", *_QUALITY)
    return PartitionTable("baselines", "Beside the cosine transform", text, "", lines)


def likeness(found: Findings) -> PartitionTable:
    """Alakkari 2020, section 4.5.4: explained variance and principal angles of bands at random and whole samples."""
    analogy = found.analogy
    apart = f"{RANDOM}, channels apart"
    lines = []
    for j, whole in enumerate(analogy.holistic):
        shown: dict[str, Value] = {"explained_holistic": whole}
        for name, key, points in ((RANDOM, "random", "points"), (apart, "apart", "points_apart")):
            curve = analogy.bands.get(name, ())
            if j < len(curve):
                shown |= {f"explained_{key}": curve[j], points: 100 * (curve[j] - whole)}
        if j < len(analogy.combined):
            shown["explained_combined"] = analogy.combined[j]
        if j + 1 in analogy.angles:
            shown |= dict(zip(("angle_least", "angle_middle", "angle_largest"), analogy.angles[j + 1], strict=True))
        lines.append((f"{j + 1}", shown))
    text = (
        "Share of the variance of the training samples that the first k components explain: of whole samples, of every "
        "band, and of k vectors that combine one component of each band, with the signs that make the scores of the "
        "bands agree. The angles, in degrees, are the principal angles between the span of these vectors and that of "
        "k components of whole samples."
    )
    return PartitionTable("analogy", "Bands at random and whole samples (section 4.5.4)", text, "k", lines)


def _of_whole_samples(found: Findings) -> tuple[str, ...]:
    """Return remarks on the number of components of whole samples."""
    k = found.records[HOLISTIC].facts.n_components
    theirs = PUBLISHED[found.settings.compare].get(HOLISTIC)
    usual = min(USUAL_HOLISTIC, found.plan.n_training - 1, math.prod(found.samples.stack.sample_shape))
    remarks = []
    if found.settings.holistic is None and k < usual:
        remarks.append(f"The memory of a task fits {k:,} components of whole samples, not the usual {usual:,}.")
    if theirs is not None and theirs.components != k:
        remarks.append(
            f"The thesis has {theirs.components:,} components of whole samples, MSE {theirs.mse:g} and SSIM "
            f"{theirs.ssim:g}; here there are {k:,}."
        )
    if theirs is not None and theirs.ratio is not None:
        remarks.append(f"The {theirs.ratio:g}:1 of whole samples in the thesis is samples to components.")
    return tuple(remarks)
