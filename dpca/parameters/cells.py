"""Parameters of `CellPCA` and `BandPCA`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.choices import MAPPINGS, NOISE
from dpca.parameters import common
from dpca.parameters.declaration import (
    REQUIRED,
    Option,
    StoragePolicy,
    always_stored,
    never_stored,
    parameter,
    stored_with_state,
)
from dpca.parameters.kinds import BOUNDS, FLAG, LENGTHS, NAMES, array, choice, number, whole

#: The parameters for the number of components. If all are None, an estimator keeps all components.
CHOICES = ("n_components", "threshold", "total_components", "ratio", "target_mse", "target_psnr", "target_ssim")
TARGETS = CHOICES[-3:]
#: Further parameters of some of these choices.
OF_CHOICES = ("max_components", "validation_fraction", "sigma")


@dataclass(eq=False, repr=False)
class PartitionParameters:
    """Parameters of the estimators with one analysis for each part, called {part} in the documentation."""

    n_components: int | str | None = stored_with_state(
        None,
        whole(1) | choice(NOISE),
        'Number of components of each {part}. None keeps all. "marchenko-pastur" keeps the components above the noise '
        "floor. Without ``sigma``, it assumes the same noise level in all attributes (Veraart et al. 2016). A {part} "
        "with fewer attributes keeps all of its components.",
        shown='int, "marchenko-pastur" or None',
        option=Option(
            "--components",
            "K",
            "keep K components of each cell or band; 'all'; or 'marchenko-pastur': components above the noise floor "
            "(assumes the same noise everywhere, estimated or --sigma)",
            kind=whole(1) | choice("all", NOISE),
            exclusive=True,
        ),
    )
    _: KW_ONLY
    threshold: float | None = stored_with_state(
        None,
        number(least=0, below=1),
        "Keep the fewest components of each {part} that explain more than this share of its variance (Alakkari 2020, "
        "section 4.1), at most ``max_components``. Alternative to ``n_components``.",
        option=Option("--threshold", "SHARE", exclusive=True),
    )
    total_components: int | None = stored_with_state(
        None,
        whole(1),
        "Number of components of all {parts} together, distributed for the least squared error. Alternative to "
        "``n_components``.",
        option=Option("--total-components", "N", exclusive=True),
    )
    ratio: float | None = stored_with_state(
        None,
        number(above=0),
        "Keep one score per this number of attributes of a sample. The total number of components follows, rounded to "
        "an integer, and is distributed for the least squared error. Alternative to ``n_components``.",
        option=Option(
            "--ratio",
            "R",
            "keep one score per R attributes of a sample: R times fewer numbers, not a file that is R times smaller, "
            "which is --quality ratio=R of dpca compress",
            kind=number(least=1),
            exclusive=True,
        ),
    )
    target_mse: float | None = stored_with_state(
        None,
        number(above=0),
        "Keep the fewest components, distributed for the least squared error, for at most this mean squared error of "
        "values scaled so that ``data_range`` has length 1. The error is that before values are rounded to pixels. The "
        "target holds for the samples of the fit, or for the samples that ``validation_fraction`` holds out. It "
        "follows from the eigenvalues, without a second pass. It is exact, except that with incremental SVD the "
        "eigenvalues are an upper bound of the error. Alternative to ``n_components``.",
        option=Option("--target-mse", "MSE", exclusive=True),
    )
    target_psnr: float | None = stored_with_state(
        None,
        number(above=0),
        "Keep the fewest components that reach this peak signal-to-noise ratio in dB, for example 32. As "
        "``target_mse``.",
        option=Option("--target-psnr", "DB", exclusive=True),
    )
    target_ssim: float | None = stored_with_state(
        None,
        number(above=0, most=1),
        "Keep the fewest components, distributed for the least squared error, that reach this mean SSIM, for example "
        "0.95. Windows are uniform, of 7 pixels a side; values are rounded and clipped to pixels. The search uses 500 "
        "samples spread over the stack, or over the held-out samples if there is a ``validation_fraction``. They are "
        "read once and held in memory with their scores. Fewer samples are used if they would take more than half of "
        "``memory_budget``. Alternative to ``n_components``.",
        option=Option("--target-ssim", "SSIM", exclusive=True),
    )
    validation_fraction: float | None = never_stored(
        None,
        number(above=0, most=0.5),
        "Share of the samples that is held out of the fit, so that the target holds for these samples; default none. "
        "Held-out samples have a larger error than fitted ones if there are few samples. At most 10,000 samples are "
        "held out, spread over the stack by ``random_state``. They are read once more, at most a twentieth of a large "
        "stack.",
        option=Option("--validation-fraction", "SHARE"),
    )
    sigma: Any = parameter(
        None,
        number(above=0) | array("an array of the shape of a sample"),
        'Standard deviation of the noise for n_components="marchenko-pastur": one number, or a map of the shape of a '
        "sample, such as ``sigma_`` of a `Denoiser`. With a map, the components span the signal that is found in "
        "attributes divided by the standard deviation of their noise; overlapping and shared cells do not support it. "
        "By default, the noise of each {part} is estimated, and the same in all of its attributes.",
        kept=StoragePolicy.LATER_WITH_STATE,
        shown="float or array, optional",
        option=Option("--sigma", "S", kind=number(above=0)),
    )
    max_components: int | None = stored_with_state(
        None,
        whole(1),
        "Largest number of components of each {part} if the numbers differ; default four times the mean number, or a "
        "third of the attributes if no mean is given. This many are computed. A `RankWarning` reports if that is too "
        "few. If a target needs more than the default, the fit reads the samples again.",
        option=Option("--max-components", "K"),
    )
    data_range: tuple[float, float] | None = stored_with_state(
        None,
        BOUNDS,
        "Smallest and largest possible value, for the targets. Default: the data range of the stack, or the full range "
        "of ``bool`` and ``uint8``. For other values, a pass before the fit finds their range.",
    )
    axes: str | Sequence[str] | None = parameter(
        None,
        NAMES,
        'Names of the axes of a sample, or of all axes, samples first, such as "tczyx". An axis "c" or "channel" has '
        "channels. The default is the names in the source; samples without names have channels on a last axis of at "
        "most 4 entries.",
    )
    random_state: Any = common.random_state(
        "Seed of the samples for a quality target. Resuming an interrupted fit requires an integer."
    )
    memory_budget: int | None = common.memory_budget()
    flatten: bool = common.flatten("scores", "{parts} * n_components")
    keep_state: bool = common.keep_state()
    weights: Any = common.weights("Targets and ``sigma`` do not support weights.")


@dataclass(eq=False, repr=False, kw_only=True)
class CellParameters(PartitionParameters):
    """Parameters of `CellPCA`."""

    cell_shape: int | tuple[int, ...] = never_stored(
        REQUIRED,
        LENGTHS,
        "Cell length in pixels along each spatial axis; an integer applies to all of them, and shorter axes are not "
        "divided. The length of a tuple is the number of spatial axes; the remaining axes are channels, of at most 4 "
        "entries unless ``axes`` names them. With an integer, the last axis counts as channels if it has at most 4 "
        "entries and follows at least two other axes.",
        option=Option("--cell", "N[xM[xL]]", exclusive=True),
    )
    overlap: int = never_stored(
        0,
        whole(0),
        "Pixels on each side of a border between cells that an orthogonal filter combines before the analysis, to "
        "avoid visible edges; at least 2 and at most half of a cell, or 0 for no overlap. Nothing is stored twice, and "
        "all certificates remain exact. See :class:`~dpca.partition.prefilter.Prefilter`.",
        option=Option("--overlap", "N"),
    )
    shared: bool = never_stored(
        False,
        FLAG,
        "Use the same components for all cells of a shape: the model is smaller, but needs more components for the "
        "same error. They are the eigenvectors of the average of the cells' covariances, each about the mean of its "
        "cell. These leave the least squared error of all shared components. A shared component is counted once for "
        "each cell, and is retained in all of these cells or in none.",
        option=Option("--shared", const=True),
    )
    gaps: str = common.gaps(
        common.SEVERAL_PASSES,
        "Each cell has its own model. Requires an integer ``n_components``, and neither overlap, "
        "shared components nor ``keep_state``.",
    )
    missing_value: Any = common.missing_value()


@dataclass(eq=False, repr=False, kw_only=True)
class BandParameters(PartitionParameters):
    """Parameters of `BandPCA`."""

    band_size: int = always_stored(
        REQUIRED,
        whole(1),
        "Largest number of attributes in a band (L in the thesis).",
        option=Option("--band-size", "N", exclusive=True),
    )
    mapping: str = always_stored(
        "mean-variance",
        choice(*MAPPINGS),
        "How attributes are assigned to bands: by similar means and variances, by means, at random, or in their order."
        "\n\n"
        '- "mean": by similar means (Alakkari 2020, equation 4.2). The range of the means is divided into '
        "``n_intervals`` intervals of equal width. The attributes of an interval are sorted by their mean and cut into "
        "bands of ``band_size``. The last band of an interval contains the remaining attributes, so bands have unequal "
        "sizes and no band crosses an interval border.\n"
        '- "mean-variance": by similar means and variances (equation 4.3). As "mean", but sorted by variance.\n'
        '- "random": bands of ``band_size`` attributes, drawn by ``random_state`` (section 4.5.3). The last band '
        "contains the remaining attributes. Each band covers the whole sample, as holistic PCA does: its leading "
        "components, at their positions in the sample, resemble the holistic components (section 4.5.4).\n"
        '- "raster": consecutive attributes, as a baseline.',
        option=Option("--mapping"),
    )
    n_intervals: int = always_stored(
        50,
        whole(1, 10_000_000),  # each takes memory, and more intervals than attributes serve no purpose
        "Number of intervals of the mean (s in the thesis).",
        option=Option("--intervals", "N"),
    )
    n_estimating: int | None = always_stored(
        None,
        whole(2),
        "Number of samples for the estimate of means and variances (section 4.5.3, the estimating subset); default "
        "all, in an additional pass. The stack is divided into this many equal parts, and one random sample is drawn "
        "from each.",
        option=Option("--estimating", "N"),
    )
    keep_channels: bool = always_stored(
        True,
        FLAG,
        "Keep the channels of a pixel in one band. A band then has ``band_size // n_channels`` pixels. A pixel is "
        "mapped by the mean over its channels of their means and variances. (The thesis maps by the red channel and "
        "recommends gray values.)",
        option=Option(
            "--split-channels",
            help="let the channels of a pixel go into different bands (default: together)",
            const=False,
        ),
    )
    random_state: Any = common.random_state(
        "Seed of the random mapping, of the estimating subset, and of the samples for a quality target.",
        StoragePolicy.ALWAYS,
    )
    gaps: str = common.gaps(
        common.SEVERAL_PASSES,
        "Each band has its own model, and attributes are mapped by the moments of values that are there; if none is "
        "missing, this takes two further passes. Requires an integer ``n_components``, and no ``keep_state``.",
    )
    missing_value: Any = common.missing_value()
