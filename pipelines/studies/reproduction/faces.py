"""The table on Labeled Faces in the Wild: holistic components of whole photographs."""

from __future__ import annotations

import math

from dpca.engine.sources.source import as_source
from dpca.pipelines.studies.convergence.courses import run_rule
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.pipelines.studies.reproduction.data import Setting
from dpca.pipelines.studies.reproduction.digits import BATCH, PIXELS, in_batches, thesis_rules
from dpca.pipelines.studies.reproduction.tables import Entry, Published, ReproductionTable

_MANY, _LONG = 200, 1000
_THESIS = {
    "block power": 0.042395,
    "CCIPCA": 0.040468,
    "mini-batch CCIPCA": 0.040478,
    "IPCA": 0.040462,
    "SM": 0.041548,
    "mini-batch SM": 0.040488,
    "accelerated Oja, 1st strategy": 0.040488,
    "accelerated Oja, 2nd strategy": 0.040412,
    "accelerated block power, 1st strategy": 0.040487,
    "accelerated block power, 2nd strategy": 0.040408,
}


def faces_table(setting: Setting) -> ReproductionTable:
    """Alakkari 2020, table 3.7, the column of LFW, and the 200 components of the text below it; one trial."""
    source = as_source(setting.faces())
    reference = exact_reference(source, _MANY, run=setting.run)
    last, best_rule, _ = thesis_rules(_MANY)[-1]
    lines = [(name, 5, BATCH, make, Published(_THESIS[name])) for name, make, _ in thesis_rules(5)]
    lines += [(last, _MANY, size, best_rule, Published(0.0091, rounding=5e-5)) for size in (BATCH, _LONG)]
    runs = [
        run_rule(in_batches(make, size)(0), source, [source.shape[0]], value_range=PIXELS, run=setting.run)
        for _, _, size, make, _ in lines
    ]
    # All in one pass, with the best components of both numbers.
    ends = [run.found[-1]["components"] for run in runs]
    bases = [reference.components[:5], reference.components, *ends]
    captured, total = reference.captured(bases, run=setting.run)
    n, d = source.shape[0], math.prod(source.shape[1:])
    errors = [(total - share) * (n - 1) / n / d / PIXELS[1] ** 2 for share in captured]
    entries = [
        Entry("best components", f"k = {k}", None, (error,)) for k, error in zip((5, _MANY), errors, strict=False)
    ]
    entries += [
        Entry(name, f"k = {k}, B = {size:,}", published, (error,), run.seconds[-1])
        for (name, k, size, _, published), error, run in zip(lines, errors[2:], runs, strict=True)
    ]
    return ReproductionTable(
        "lfw",
        "Labeled Faces in the Wild, one pass (Alakkari 2020, table 3.7)",
        "Mean squared error of intensities in [0, 1], reconstructed from the components and the mean",
        f"{n:,} photographs of 250 x 250 x 3, deep-funneled, random order, batches of B; one trial. "
        f"The source's B is {BATCH}, and not stated for {_MANY} components, which {BATCH} samples do not span.",
        tuple(entries),
        places=6,
        remarks=_beside_the_best(entries[0].mean, entries[2:-2]),
    )


def _beside_the_best(best: float, rules: list[Entry]) -> tuple[str, ...]:
    """Tell how the results of 5 components compare with the least error that any 5 can leave."""
    ours = [entry.mean for entry in rules]
    theirs = [entry.published.value for entry in rules if entry.published is not None]
    told = (
        f"No 5 components of these photographs can leave less than {best:.6f}. Ours leave {_above(min(ours), best)} to "
        f"{_above(max(ours), best)} more, theirs {_above(min(theirs), best)} to {_above(max(theirs), best)}."
    )
    if min(theirs) < best:
        told += " So theirs were measured on other files, or in another way, and differences of that size say nothing."
    return (told,)


def _above(error: float, best: float) -> str:
    return f"{100 * (error / best - 1):.1f} %"
