"""The table on Labeled Faces in the Wild: holistic components of whole photographs."""

from __future__ import annotations

import math

from dpca.engine.source import as_source
from dpca.jobs.courses import run_rule
from dpca.jobs.reference import exact_reference
from dpca.jobs.reproduction.data import Setting
from dpca.jobs.reproduction.digits import PIXELS, in_batches, thesis_rules
from dpca.jobs.reproduction.tables import Entry, Published, Table

_MANY = 200
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


def faces_table(setting: Setting) -> Table:
    """T table 3.7, the column of LFW, and the 200 components of the text below it; one trial, as in the source."""
    source = as_source(setting.faces())
    reference = exact_reference(source, _MANY, progress=setting.progress)
    last, best_rule, _ = thesis_rules(_MANY)[-1]
    lines = [(name, 5, make, Published(_THESIS[name])) for name, make, _ in thesis_rules(5)]
    lines.append((last, _MANY, best_rule, Published(0.0091, rounding=5e-5)))
    runs = [
        run_rule(in_batches(make)(0), source, [source.shape[0]], value_range=PIXELS, progress=setting.progress)
        for _, _, make, _ in lines
    ]
    # All in one pass, with the best components of both numbers.
    ends = [run.found[-1]["components"] for run in runs]
    bases = [reference.components[:5], reference.components, *ends]
    captured, total = reference.captured(bases, progress=setting.progress)
    n, d = source.shape[0], math.prod(source.shape[1:])
    errors = [(total - share) * (n - 1) / n / d / PIXELS[1] ** 2 for share in captured]
    entries = [
        Entry("best components", f"k = {k}", None, (error,)) for k, error in zip((5, _MANY), errors, strict=False)
    ]
    entries += [
        Entry(name, f"k = {k}", published, (error,), run.seconds[-1])
        for (name, k, _, published), error, run in zip(lines, errors[2:], runs, strict=True)
    ]
    return Table(
        "lfw",
        "Labeled Faces in the Wild, one pass (Alakkari 2020, table 3.7)",
        "Mean squared error of intensities in [0, 1], reconstructed from the components and the mean",
        f"{n:,} photographs of 250 x 250 x 3, deep-funneled, random order, batches of 100; one trial.",
        tuple(entries),
        places=6,
        remarks=_beside_the_best(entries),
    )


def _beside_the_best(entries: list[Entry]) -> tuple[str, ...]:
    """Tell how the results that differ most compare with the best there can be."""
    best = entries[0].mean
    rules = [entry for entry in entries[2:-1] if entry.published is not None]
    ours = [entry.mean for entry in rules]
    theirs = [entry.published.value for entry in rules if entry.published is not None]
    return (
        f"No 5 components can leave less than {best:.6f}. Theirs lie up to {100 * (max(theirs) / best - 1):.1f} % "
        f"above that, ours up to {100 * (max(ours) / best - 1):.1f} %; the closest are {min(theirs):.6f} and "
        f"{min(ours):.6f}.",
    )
