"""The figures of chapter 4 from the records of strategies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dpca import plots
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.partitions.contents import Findings
from dpca.pipelines.studies.partitions.records import Record, fewer_of
from dpca.pipelines.studies.partitions.samples import panels
from dpca.pipelines.studies.partitions.settings import count_cut
from dpca.pipelines.studies.partitions.strategies import CURVE, HOLISTIC, RANDOM, RASTER
from dpca.pipelines.studies.runner import Picture
from dpca.plots.layouts import gallery
from dpca.plots.panels import centered, intensity

_COMPARED = 6
CAPTIONS = {
    "fig-4-3-cells-and-whole-samples": (
        "Cells and whole samples (figure 4.3)",
        "Samples, and their reconstructions from components of whole samples and of cells.",
    ),
    "fig-4-4-eigencells": (
        "Eigencells in their places (figure 4.4)",
        "The first eigenvectors of every cell, at the positions of the cells. Gray is zero. The sign of an eigenvector "
        "is arbitrary: signs are chosen so that neighboring cells agree.",
    ),
    "fig-4-5-cell-sizes": (
        "Sizes of cells (figure 4.5)",
        "The same compression, counted in scalars, with cells of several sizes.",
    ),
    "fig-4-6-numbers-of-components": (
        "Numbers of components (figure 4.6)",
        "The largest cells with fewer components, and in the last column with all of them.",
    ),
    "fig-4-7-mappings": (
        "Mappings of attributes to bands (figure 4.7)",
        "Reconstructions from the bands of every mapping; means and variances from all training samples.",
    ),
    "fig-4-8-whole-and-combined": (
        "Components of whole samples, and of bands at random combined (figure 4.8)",
        "Above: components of whole samples, with the share of the variance that each explains. Below: vectors that "
        "combine one component of each random band, with the signs that make the scores of the bands agree.",
    ),
    "fig-4-9-explained-variance": (
        "Explained variance (figure 4.9)",
        "Share of the variance of the training samples that the first components of every partition explain together. "
        "A component of a partition is one score for each cell or band, so lines of more partitions have more scores.",
    ),
}


def all_pictures(found: Findings) -> dict[str, Picture]:
    """Draw every figure."""
    plan, records = found.plan, found.records
    cells, whole, random = found.cells(), records[HOLISTIC], records[RANDOM]
    mapped = [found.named(beginning)[-1] for beginning in ("bands by mean, ", "bands by mean and variance, ")]
    # Of bands by estimated means and variances, only those from all samples.
    bands = [r for r in found.named("bands") if ", from " not in r.facts.name or r.facts.name.endswith("from all")]
    lines = {record.facts.name: record.arrays["curve"][:CURVE] for record in [whole, *cells, *bands]}
    lines["bands at random, combined"] = np.asarray(found.analogy.combined)
    figures = (
        _reconstructions(found, [whole, cells[plan.middle]]),
        _eigencells(found, cells[plan.middle]),
        _reconstructions(found, cells),
        _fewer(found, cells[-1]),
        _reconstructions(found, [random, *mapped, records[RASTER]]),
        _side_by_side(found, whole.arrays["rows"], random.arrays["rows"]),
        plots.explained_variance(lines, emphasized=HOLISTIC),
    )
    return {name: Picture(figure, *CAPTIONS[name]) for name, figure in zip(CAPTIONS, figures, strict=True)}


def _reconstructions(found: Findings, records: Sequence[Record]) -> Figure:
    """Draw originals, and beside them the reconstructions of some strategies."""
    samples = found.samples
    columns = [samples.pictures(None), *(record.arrays["pictures"] for record in records)]
    ssim = [record.arrays.get(f"{samples.pictured_of}.ssim") for record in records]
    captions = [
        ["", *("" if values is None else f"SSIM {values[place]:.3f}" for values in ssim)] for place in samples.pictured
    ]
    heads = ["original", *(record.facts.name.removesuffix(", from all") for record in records)]
    n_attributes = int(np.prod(samples.stack.sample_shape))
    facts = [record.facts for record in records]
    notes = ["", *(f"k = {one.n_components:,}, {n_attributes / one.kept:.1f}:1" for one in facts)]
    return _gallery(found, columns, heads, notes, captions)


def _fewer(found: Findings, record: Record) -> Figure:
    counts = fewer_of(record.facts.n_components)
    columns = [found.samples.pictures(None), *record.arrays["fewer"]]
    errors = [record.facts.total * (1 - record.arrays["curve"][count - 1]) for count in counts]
    heads = ["original", *(f"k = {count:,}" for count in counts)]
    notes = ["", *(f"MSE {error:.3g}" for error in errors)]
    return _gallery(found, columns, heads, notes, None)


def _gallery(
    found: Findings,
    columns: Sequence[Array],
    heads: Sequence[str],
    notes: Sequence[str],
    captions: Sequence[Sequence[str]] | None,
) -> Figure:
    samples = found.samples
    numbers = samples.measured[samples.pictured_of].numbers[samples.pictured]
    names = [str(samples.stack.names[number]).rsplit("/", 1)[-1] for number in numbers]
    rows = [
        [intensity(column[place].astype(np.float64), samples.data_range) for column in columns]
        for place in range(len(numbers))
    ]
    return gallery(rows, heads, notes, names, captions)


def _eigencells(found: Findings, record: Record) -> Figure:
    shown = record.arrays["eigencells"]
    curve = record.arrays["curve"][: len(shown)]
    # Panels are images or curves; a gray panel has lost its channels.
    axes = ("feature",) if shown.ndim == 2 else ("y", "x", "channel")[: shown.ndim - 1]
    # A thinned panel has other cells, and their signs are not aligned.
    whole = tuple(found.samples.stack.sample_shape[: count_cut(found.samples.axes)])[-2:] == shown.shape[1:3]
    return plots.cell_eigenvectors(
        shown,
        len(shown),
        axes=axes,
        cell_shape=found.plan.cells[found.plan.middle] if whole else None,
        explained_variance_ratio=np.diff(curve, prepend=0.0),
    )


def _side_by_side(found: Findings, whole: Array, combined: Array) -> Figure:
    """Draw rows of both, the second with the signs of the first."""
    shape = found.samples.stack.sample_shape
    count = min(_COMPARED, len(whole), len(combined))
    signs = np.where(np.einsum("ij,ij->i", whole[:count], combined[:count]) < 0, -1, 1)
    rows = [
        [centered(picture.astype(np.float64)) for picture in panels(vectors.reshape(count, *shape), found.samples.axes)]
        for vectors in (whole[:count], combined[:count] * signs[:, None])
    ]
    heads = [f"{i + 1}" for i in range(count)]
    notes = [f"{share:.1%}" for share in np.diff(found.analogy.holistic, prepend=0.0)[:count]]
    return gallery(rows, heads, notes, ["whole samples", "bands, combined"])
