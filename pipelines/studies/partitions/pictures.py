"""The figures of chapter 4 from what is kept of every strategy."""

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
from dpca.pipelines.studies.partitions.strategies import CURVE, HOLISTIC, RANDOM
from dpca.plots.layouts import gallery
from dpca.plots.panels import centered, intensity

_COMPARED = 6
CAPTIONS = {
    "fig-4-3-cells-and-whole-samples": (
        "Cells and whole samples (figure 4.3)",
        "Samples, what components of whole samples give back of them, and what those of cells do.",
    ),
    "fig-4-4-eigencells": (
        "Eigencells in their places (figure 4.4)",
        "The first eigenvectors of every cell, laid out where the cells are; grey is zero, and as an eigenvector's "
        "sign is free, neighbors are given the signs that agree.",
    ),
    "fig-4-5-cell-sizes": (
        "Sizes of cells (figure 4.5)",
        "The same compression, counted in scalars, with cells of several sizes.",
    ),
    "fig-4-6-numbers-of-components": (
        "Numbers of components (figure 4.6)",
        "The largest cells with fewer components than they have, the last column with all of them.",
    ),
    "fig-4-7-mappings": (
        "Mappings of attributes to bands (figure 4.7)",
        "What the bands of every mapping give back; means and variances from all training samples.",
    ),
    "fig-4-8-whole-and-combined": (
        "Components of whole samples, and of bands at random combined (figure 4.8)",
        "Above: components of whole samples, with the share of the variance that each explains. Below: vectors that "
        "combine one component of each random band, with the signs by which the scores of the bands go together.",
    ),
    "fig-4-9-explained-variance": (
        "Explained variance (figure 4.9)",
        "Share of the variance of the training samples that the first components of every partition hold together. A "
        "component of a partition is one score for each cell or band, so lines of more partitions have more scores.",
    ),
}


def all_figures(found: Findings) -> dict[str, Figure]:
    """Draw every figure there is something for."""
    plan, records = found.plan, found.records
    cells, whole = found.cells(), records[HOLISTIC]
    mapped = [found.named(beginning)[-1] for beginning in ("bands by mean, ", "bands by mean and variance, ")]
    figures = {
        "fig-4-3-cells-and-whole-samples": _reconstructions(found, [whole, cells[plan.middle]]),
        "fig-4-4-eigencells": _eigencells(found, cells[plan.middle]),
        "fig-4-5-cell-sizes": _reconstructions(found, cells),
        "fig-4-6-numbers-of-components": _fewer(found, cells[-1]),
        "fig-4-7-mappings": _reconstructions(found, [records[RANDOM], *mapped, records["bands in raster order"]]),
        "fig-4-8-whole-and-combined": _side_by_side(found, whole.arrays["rows"], records[RANDOM].arrays["rows"]),
    }
    # Of bands by estimated means and variances, those from all samples.
    bands = [r for r in found.named("bands") if ", from " not in r.facts.name or r.facts.name.endswith("from all")]
    shown = [whole, *cells, *bands]
    lines = {record.facts.name: record.arrays["curve"][:CURVE] for record in shown}
    lines["bands at random, combined"] = np.asarray(found.analogy.combined)
    figures["fig-4-9-explained-variance"] = plots.explained_variance(lines, emphasized=HOLISTIC)
    return figures


def _reconstructions(found: Findings, records: Sequence[Record]) -> Figure:
    """Originals, and beside them what some strategies give back."""
    samples = found.samples
    measure = "training" if samples.held_out is None else "held-out"
    columns = [samples.pictures(None), *(record.arrays["pictures"] for record in records)]
    ssim = [record.arrays.get(f"{measure}.ssim") for record in records]
    captions = [
        ["", *("" if values is None else f"SSIM {values[place]:.3f}" for values in ssim)] for place in samples.pictured
    ]
    heads = ["original", *(_short(record.facts.name) for record in records)]
    notes = ["", *(f"k = {record.facts.n_components:,}, {_of(found, record):.1f}:1" for record in records)]
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
    numbers = samples.pictured_of.numbers[samples.pictured]
    names = [str(samples.stack.names[number]).rsplit("/", 1)[-1] for number in numbers]
    rows = [
        [intensity(column[place].astype(np.float64), samples.data_range) for column in columns]
        for place in range(len(numbers))
    ]
    return gallery(rows, heads, notes, names, captions)


def _eigencells(found: Findings, record: Record) -> Figure:
    shown = record.arrays["eigencells"]
    curve = record.arrays["curve"][: len(shown)]
    cell = found.plan.cells[found.plan.middle]
    # Panels are images or curves; a grey panel has lost its channels.
    axes = ("feature",) if shown.ndim == 2 else ("y", "x", "channel")[: shown.ndim - 1]
    # Rows and columns left out of a picture that no page could show leave no cells to align.
    whole = tuple(found.samples.stack.sample_shape[: count_cut(found.samples.axes)])[-2:] == shown.shape[1:3]
    return plots.cell_eigenvectors(
        shown,
        len(shown),
        axes=axes,
        cell_shape=cell if whole else None,
        explained_variance_ratio=np.diff(curve, prepend=0.0),
    )


def _side_by_side(found: Findings, whole: Array, combined: Array) -> Figure:
    """Rows of both, the second with the signs of the first, for signs are free."""
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


def _short(name: str) -> str:
    """Return the name of a strategy as a heading that fits above a panel."""
    return name.removesuffix(", from all")


def _of(found: Findings, record: Record) -> float:
    """Attributes of a sample to its scores."""
    return int(np.prod(found.samples.stack.sample_shape)) / record.facts.kept
