"""From the records of all strategies to the tables of the thesis, theirs beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpca.kernels.algebra.dtypes import working_dtype
from dpca.pipelines.studies.partitions.analogy import Analogy
from dpca.pipelines.studies.partitions.published import FIRST_EXAMPLE, QUALITY, SECONDS, PublishedQuality
from dpca.pipelines.studies.partitions.records import Record
from dpca.pipelines.studies.partitions.samples import ReportSamples
from dpca.pipelines.studies.partitions.settings import USUAL_HOLISTIC, Design, PartitionSettings
from dpca.pipelines.studies.partitions.strategies import HOLISTIC, RANDOM, size_of
from dpca.pipelines.studies.partitions.tables import Bound, PartitionTable, Value

# Alakkari 2020, section 4.5.3: what the published bands were made with.
_THEIR_BANDS = (1875, 50)
_QUALITY = ("scalars_ratio", "bytes_ratio", "mse", "ssim", "held_out_mse", "held_out_ssim")
_READING = (
    "Built is this reading: the range of the means is divided into {intervals} intervals of equal width; the "
    "attributes of an interval are sorted by mean, or by variance, and every {size:,} of them are one band, the last "
    "one takes the interval's rest. {channels}Means and variances are estimated from one sample at random in each of "
    "as many equal parts of the training samples (the thesis: from one mini-batch)."
)
_TOGETHER = (
    "The channels of a pixel stay in one band and are mapped by their averages (the thesis maps pixels by the red "
    "channel), but where it says that they are apart. "
)


@dataclass(frozen=True)
class Findings:
    """All that the tables are made of.

    Attributes
    ----------
    settings : PartitionSettings
    plan : Design
    samples : Samples
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
        """Return the records of strategies whose name begins so."""
        return [record for name, record in self.records.items() if name.startswith(beginning)]

    def theirs(self, record: Record) -> PublishedQuality | None:
        """Return the published numbers of a strategy, if it was run with the published settings."""
        name = record.facts.name
        known = QUALITY[self.settings.compare].get(name)
        if name.startswith("bands") and (self.plan.band_size, self.settings.n_intervals) != _THEIR_BANDS:
            return None
        return known if known is not None and known.components == record.facts.n_components else None

    def values(self, record: Record) -> dict[str, Value]:
        """Return what every table has of a strategy."""
        facts, stack, theirs = record.facts, self.samples.stack, self.theirs(record)
        width = working_dtype(stack.dtype).itemsize
        coded = stack.n_samples * facts.kept * width + facts.model_bytes
        return {
            "partitions": facts.n_partitions,
            "components": facts.n_components,
            "scalars_ratio": math.prod(stack.sample_shape) / facts.kept,
            "bytes_ratio": stack.nbytes / coded,
            "mse": facts.left if facts.exact else Bound(facts.left, "at most"),
            "pixel_mse": record.mean("training.pixel_mse"),
            "ssim": record.mean("training.ssim"),
            "held_out_mse": record.mean("held-out.mse"),
            "held_out_ssim": record.mean("held-out.ssim"),
            "theirs_ratio": None if theirs is None else theirs.ratio,
            "theirs_mse": None if theirs is None else theirs.mse,
            "theirs_ssim": None if theirs is None else theirs.ssim,
        }

    def seconds(self, record: Record, share: int = 1) -> Value:
        """Return the processor seconds of a fit, or of one of so many parts of it."""
        value = record.facts.seconds / share
        return value if record.facts.whole else Bound(value, "at least")


def all_tables(found: Findings) -> list[PartitionTable]:
    """Return the tables in the order of the page."""
    made = (first_example, cell_sizes, run_times, mappings, baselines, likeness)
    return [make(found) for make in made]


def conditions(found: Findings) -> list[str]:
    """Say what the columns are of, once for all tables."""
    plan, samples = found.plan, found.samples
    m, dtype = len(samples.training.values), samples.stack.dtype
    which = f"all {m:,}" if m == plan.n_training else f"{m:,} of them, spread over all"
    told = ["Tables and figures are numbered as in Alakkari 2020, chapter 4."]
    told.append(f"MSE: of all {plan.n_training:,} training samples, from the eigenvalues; intensities in 0..1.")
    if dtype.kind != "f":
        told.append(f"MSE of pixels, rounded and clipped, which takes a little off: of {which}.")
    if samples.has_ssim:
        told.append(f"SSIM: of {which}; uniform window of 7, as scikit-image has it by default.")
    else:
        told.append("SSIM is not defined for samples of this shape.")
    if samples.held_out is not None:
        told.append(
            f"Held out: {len(samples.held_out.values):,} of {plan.n_held_out:,} samples that no fit saw, one at random "
            f"in each of as many equal parts of the stack. What belongs together in it, photographs of one person, may "
            f"be on both sides."
        )
    told.append(
        f"Compression is counted twice: in scalars, attributes to scores of a sample, as the thesis counts; in bytes, "
        f"the whole stack as {dtype} to its scores as {working_dtype(dtype)} and the model. Nothing is entropy-coded."
    )
    return told


def first_example(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.1: the middle cell size and whole samples."""
    lines = []
    for record in (found.cells()[found.plan.middle], found.records[HOLISTIC]):
        values, name = found.values(record), record.facts.name
        theirs = FIRST_EXAMPLE[found.settings.compare].get(name)
        cells = name != HOLISTIC
        same = theirs is not None and theirs.components == record.facts.n_components
        seconds = SECONDS[found.settings.compare].get(name)
        shown: dict[str, Value] = {key: values[key] for key in ("components", "mse", "held_out_mse", "scalars_ratio")}
        shown |= {
            "cell_seconds": found.seconds(record, record.facts.n_partitions) if cells else None,
            "seconds": found.seconds(record),
            "theirs_mse": theirs.mse if theirs is not None and same else None,
            "theirs_cpu": "hours" if same and not cells else None if seconds is None or not same else seconds.cpu,
        }
        lines.append((name, shown))
    return PartitionTable(
        "4.1",
        "A first example (table 4.1)",
        "CPU seconds: processor time of reading, arithmetic and eigenproblems on all workers. Whole samples by "
        "incremental SVD in one pass.",
        "",
        tuple(lines),
        _of_whole_samples(found),
    )


def cell_sizes(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.2: cells of several sizes and whole samples."""
    keys = ("partitions", "components", *_QUALITY, "pixel_mse", "theirs_mse", "theirs_ssim", "theirs_ratio")
    records = [*found.cells(), found.records[HOLISTIC]]
    lines = [(record.facts.name, _some(found.values(record), keys)) for record in records]
    told = f"As many components as make {found.settings.ratio:g} attributes one score, or what comes next to it."
    return PartitionTable("4.2", "Sizes of cells (table 4.2)", told, "", tuple(lines), _of_whole_samples(found))


def run_times(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.3: seconds a cell."""
    lines = []
    for record in found.cells():
        theirs = SECONDS[found.settings.compare].get(record.facts.name)
        published = QUALITY[found.settings.compare].get(record.facts.name)
        same = published is not None and published.components == record.facts.n_components
        shown: dict[str, Value] = {
            "partitions": record.facts.n_partitions,
            "components": record.facts.n_components,
            "cell_seconds": found.seconds(record, record.facts.n_partitions),
            "seconds": found.seconds(record),
            "theirs_cpu": theirs.cpu if theirs is not None and same else None,
            "theirs_gpu": theirs.gpu if theirs is not None and same else None,
        }
        lines.append((record.facts.name, shown))
    told = (
        "Processor time of the whole fit on all workers by the number of cells, reading included. Theirs: Intel Core "
        "6700HQ at 2.6 GHz and GeForce GTX 960M, MATLAB, all samples."
        if found.settings.compare != "none"
        else "Processor time of the whole fit on all workers by the number of cells, reading included."
    )
    return PartitionTable("4.3", "Time of a cell (table 4.3)", told, "", tuple(lines), (_on_a_gpu(),))


def mappings(found: Findings) -> PartitionTable:
    """Alakkari 2020, table 4.4: bands by every mapping and in raster order, and the largest cells."""
    keys = ("partitions", *_QUALITY, "seconds", "theirs_ratio", "theirs_mse", "theirs_ssim")
    lines = []
    for record in [*found.named("bands"), found.cells()[-1]]:
        shown = found.values(record) | {"seconds": found.seconds(record)}
        lines.append((record.facts.name, _some(shown, keys)))
    plan = found.plan
    told = f"Bands of at most {plan.band_size:,} attributes, {plan.band_components:,} components each."
    reading = _READING.format(
        intervals=found.settings.n_intervals, size=plan.band_size, channels=_TOGETHER if plan.has_channels else ""
    )
    return PartitionTable("4.4", "Mappings of attributes to bands (table 4.4)", told, "", tuple(lines), (reading,))


def baselines(found: Findings) -> PartitionTable:
    """Cells beside the cosine transform with as many coefficients, and what knows neither."""
    keys = ("components", *_QUALITY)
    records: list[Record] = []
    for record in found.cells():
        size = record.facts.name.removeprefix("cells")
        records += [record, *found.named(f"DCT{size},"), *found.named(f"DCT{size} and")]
    records += [found.records["bands in raster order"], found.records[HOLISTIC]]
    lines = [(record.facts.name, _some(found.values(record), keys)) for record in records]
    told = (
        "The cosine transform of every cell, channel by channel unless it says otherwise; the mean of the training "
        "samples is taken off, as for components. Low frequencies: the same coefficients in every cell, in zigzag "
        "order, channels of a frequency together. Best set: those of most variance in the training samples, chosen for "
        "every cell; no other set that is the same for all samples leaves less. No entropy coding anywhere."
    )
    return PartitionTable("baselines", "Beside the cosine transform", told, "", tuple(lines))


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
    told = (
        "Share of the variance of the training samples that the first k components explain: of whole samples, of every "
        "band, and of as many vectors that combine one component of each band, with signs by which their scores go "
        "together. The angles, in degrees, are the principal ones between the span of these vectors and that of as "
        "many components of whole samples."
    )
    return PartitionTable("analogy", "Bands at random and whole samples (section 4.5.4)", told, "k", tuple(lines))


def _on_a_gpu() -> str:
    """Say what is known of a graphics processor; the place for its column."""
    return "No GPU was measured."


def _of_whole_samples(found: Findings) -> tuple[str, ...]:
    """Tell what there is to know of the number of components of whole samples."""
    record = found.records[HOLISTIC]
    theirs = QUALITY[found.settings.compare].get(HOLISTIC)
    told = []
    usual = min(USUAL_HOLISTIC, found.plan.n_training - 1, math.prod(found.samples.stack.sample_shape))
    if found.settings.holistic is None and record.facts.n_components < usual:
        told.append(
            f"{usual:,} components of whole samples did not fit the memory of a task, so there are "
            f"{record.facts.n_components:,}."
        )
    if theirs is None:
        return tuple(told)
    if theirs.components != record.facts.n_components:
        told.append(
            f"The thesis has {theirs.components:,} components of whole samples, MSE {theirs.mse:g} and SSIM "
            f"{theirs.ssim:g}; here there are {record.facts.n_components:,}."
        )
    if theirs.ratio is not None:
        told.append(f"The {theirs.ratio:g}:1 that it states for whole samples is samples to components.")
    return tuple(told)


def _some(values: Mapping[str, Value], keys: tuple[str, ...]) -> dict[str, Value]:
    return {key: values[key] for key in keys}
