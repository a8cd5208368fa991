"""The table on Labeled Faces in the Wild: components of whole photographs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpca.engine.sources.source import as_source
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.reproduction.tables import Entry, Published, ReproductionTable
from dpca.pipelines.studies.reproduction.thesis import thesis_rules
from dpca.pipelines.studies.reproduction.trials import BATCH, PIXELS, in_batches, run_whole

_MANY, _LONG = 200, 1000
#: Table 3.7, in the order of `thesis_rules`.
_THESIS = (
    0.042395, 0.040468, 0.040478, 0.040462, 0.041548, 0.040488, 0.040488, 0.040412, 0.040487, 0.040408,
)  # fmt: skip


def faces_table(setting: Setting) -> ReproductionTable:
    """Alakkari 2020, table 3.7: photographs of faces, 5 components, and 200 of the text below it (half an hour)."""
    source = as_source(setting.faces())
    reference = exact_reference(source, _MANY, run=setting.run)
    last, best_rule, _ = thesis_rules(_MANY)[-1]
    rules = zip(thesis_rules(5), _THESIS, strict=True)
    lines = [(name, 5, BATCH, make, Published(error)) for (name, make, _), error in rules]
    lines += [(last, _MANY, size, best_rule, Published(0.0091, rounding=5e-5)) for size in (BATCH, _LONG)]
    runs = [run_whole(in_batches(make, size)(0), source, PIXELS, setting.run) for _, _, size, make, _ in lines]
    # One pass measures all, and the best components of both numbers.
    ends = [run.found[-1]["components"] for run in runs]
    bases = [reference.components[:5], reference.components, *ends]
    captured, total = reference.captured(bases, run=setting.run)
    n, d = source.shape[0], math.prod(source.shape[1:])
    errors = [(total - share) * (n - 1) / n / d / PIXELS[1] ** 2 for share in captured]
    best = [Entry("best components", f"k = {k}", None, (error,)) for k, error in zip((5, _MANY), errors, strict=False)]
    entries = [
        Entry(name, f"k = {k}, B = {size:,}", published, (error,), run.seconds[-1])
        for (name, k, size, _, published), error, run in zip(lines, errors[2:], runs, strict=True)
    ]
    return ReproductionTable(
        "lfw",
        "Labeled Faces in the Wild, one pass (Alakkari 2020, table 3.7)",
        "Mean squared error of intensities in [0, 1], reconstructed from the components and the mean",
        f"{n:,} photographs of 250 x 250 x 3, deep-funneled, random order, batches of B; one trial. "
        f"The B of the thesis is {BATCH}, and not stated for {_MANY} components, which {BATCH} samples do not span.",
        [*best, *entries],
        places=6,
        remarks=[_beside_the_best(best[0].mean, entries[:-2])],
    )


def _beside_the_best(best: float, rules: Sequence[Entry]) -> str:
    """Compare the errors of 5 components with the least possible error."""

    def above(errors: Sequence[float]) -> str:
        return " to ".join(f"{100 * (error / best - 1):.1f} %" for error in (min(errors), max(errors)))

    theirs = [entry.published.value for entry in rules if entry.published is not None]
    remark = (
        f"No 5 components of these photographs have an error below {best:.6f}. Ours are "
        f"{above([e.mean for e in rules])} above it, theirs {above(theirs)}."
    )
    if min(theirs) < best:
        remark += (
            " So theirs were measured on other files, or in another way, and such differences are not significant."
        )
    return remark
