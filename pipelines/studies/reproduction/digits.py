"""Tables on MNIST."""

from __future__ import annotations

from functools import partial

import numpy as np

from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.reproduction.tables import Entry, Published, ReproductionTable
from dpca.pipelines.studies.reproduction.thesis import Numbers, thesis_rules
from dpca.pipelines.studies.reproduction.trials import (
    BATCH,
    MEASURE,
    PIXELS,
    Make,
    entries_of,
    entry,
    in_batches,
    shuffled,
)
from dpca.rules import IPCA, ImplicitKrasulina, IncrementalSVD, Power
from dpca.rules.base.minibatch import InBatches

_SEGMENTS = 64
#: Table 3.4.
_THESIS: Numbers = (
    (-1.086, 0), (-2.22, 0.49), (-2.45, 0.58), (-2.64, 0.003), (-3.15, 0.35), (-2.16, 0.6),
    (-2.32, 0.48), (-3.7, 0.16), (-2.6, 0.6), (-3.88, 0.07),
)  # fmt: skip


def digits_table(setting: Setting) -> ReproductionTable:
    """Alakkari 2020, table 3.4: MNIST, ten rules."""
    x, _ = setting.digits("train")
    reference = exact_reference(as_source(x), 5)
    published = [Published(*numbers) for numbers in _THESIS]
    streams = partial(shuffled, x, reference, setting.trials)
    entries = entries_of(thesis_rules(5), "k = 5", streams, published, value_range=PIXELS)
    return ReproductionTable(
        "mnist",
        "MNIST, one pass (Alakkari 2020, table 3.4)",
        MEASURE,
        f"60,000 training images, pixels in [0, 1], running mean, random order, batches of {BATCH}, "
        f"{setting.trials} trials.",
        entries,
    )


#: k -> losses of batch PCA, and of both rules with their standard deviations.
_LOSSES = {
    5: (35.16, (35.17, 0.01), (35.26, 0.10)),
    10: (26.95, (26.97, 0.03), (27.01, 0.04)),
    20: (18.74, (18.77, 0.02), (18.83, 0.05)),
}


def krasulina_table(setting: Setting) -> ReproductionTable:
    """Amid & Warmuth 2020, table 1: MNIST, compression loss."""
    x = np.concatenate([setting.digits(part)[0] for part in ("train", "t10k")])
    # One more component, for the cost of the wrong last one.
    reference = exact_reference(as_source(x), max(_LOSSES) + 1)
    entries, remarks = [], []
    for k, (batch, *published) in _LOSSES.items():
        best = reference.first(k)
        gap = float(-np.diff(reference.explained_variance)[k - 1]) / PIXELS[1] ** 2
        entries.append(Entry("batch PCA", f"k = {k}", Published(batch), (_loss(-np.inf, best),)))
        rules = [("implicit Krasulina, stochastic", _implicit(k), ""), ("incremental (IPCA)", _incremental(k), "")]
        streams, theirs = partial(shuffled, x, best, setting.trials), [Published(*numbers) for numbers in published]
        entries += entries_of(rules, f"k = {k}", streams, theirs, value_range=PIXELS, measure=_loss)
        remarks += _outliers(entries[-2], k, gap)
    return ReproductionTable(
        "krasulina",
        "MNIST, compression loss (Amid & Warmuth 2020, table 1)",
        "Mean squared length of the residual of a sample after projection",
        f"All 70,000 images, pixels in [0, 1], running mean, random order, eta = 1 / t^0.8, {setting.trials} trials.",
        entries,
        remarks=remarks,
    )


def _implicit(k: int) -> Make:
    return lambda seed: ImplicitKrasulina(k, Power(1.0, 0.8), online=True, seed=seed, unit=1.0)


def _incremental(k: int) -> Make:
    return lambda seed: IPCA(k)


def _default(k: int) -> Make:
    return lambda seed: IncrementalSVD(k)


def _loss(convergence: float, reference: Reference) -> float:
    """Return the mean squared residual of a sample, pixels in [0, 1]."""
    n = reference.source.shape[0]
    captured = float(reference.explained_variance.sum()) * (1 - 10.0**convergence)
    return float((reference.total_variance - captured) * (n - 1) / n / PIXELS[1] ** 2)


def _outliers(one: Entry, k: int, gap: float) -> list[str]:
    """Return a remark on trials with a far higher loss than the others, if there are any."""
    middle = float(np.median(one.values))
    far = [value for value in one.values if value > middle + max(gap / 4, 0.01)]
    if not far:
        return []
    return [
        f"{one.rule}, {one.setting}: the median of the trials is {middle:.3f}, but {len(far)} of {len(one.values)} end "
        f"far above it, the worst at {max(far):.3f}. Component {k + 1} instead of component {k} costs {gap:.3f}: a "
        f"rule that starts near the wrong one of the two converges slowly."
    ]


#: k -> required convergence in random order, and sorted by class.
_REQUIRED = {5: (-7.4, -5.0), 20: (-6.5, -4.2), 50: (-5.7, -3.7)}


def default_table(setting: Setting) -> ReproductionTable:
    """Incremental SVD on MNIST: random order, sorted, merged from 64 segments."""
    x, labels = setting.digits("train")
    in_classes = x[np.argsort(labels, kind="stable")]
    at_random = x[np.random.default_rng(0).permutation(len(x))]
    entries, remarks = [], []
    every = exact_reference(as_source(x), max(_REQUIRED))
    for k, (in_random, in_sorted) in _REQUIRED.items():
        reference = every.first(k)
        streams = {
            "random order": (shuffled(x, reference, setting.trials), in_random, at_random),
            "sorted by class": ([(as_source(in_classes), reference)], in_sorted, in_classes),
        }
        found, merged = [], []
        for order, (trials, required, rows) in streams.items():
            published, make = Published(required, at_most=True), in_batches(_default(k))
            setup = f"k = {k}, {order}"
            one = entry("incremental SVD", setup, make, trials, published=published, value_range=PIXELS)
            value = _merged(rows, k, reference)
            apart = value - one.mean
            found.append(one)
            merged.append(Entry("incremental SVD", f"{setup}, {_SEGMENTS} segments merged", None, (value,)))
            remarks.append(
                f"{setup}: merged from {_SEGMENTS} segments it is {abs(apart):.2f} "
                f"{'worse' if apart > 0 else 'better'} than in one stream; required was at most one unit worse."
            )
        entries += [*found, *merged]
    return ReproductionTable(
        "default",
        "MNIST, the default: incremental SVD with oversampling 60",
        MEASURE,
        f"60,000 training images, pixels in [0, 1], one pass, batches of {BATCH}; {setting.trials} random orders.",
        entries,
        remarks=remarks,
    )


def _merged(x: Array, k: int, reference: Reference) -> float:
    """Return the convergence of 64 segments whose states are merged in pairs of neighbors."""
    rule = InBatches(IncrementalSVD(k), BATCH)
    states = [
        rule.update(rule.init(x.shape[1], np.float32), part / np.float32(PIXELS[1]))
        for part in np.array_split(x, _SEGMENTS)
    ]
    while len(states) > 1:
        states = [rule.merge(*pair) for pair in zip(states[::2], states[1::2], strict=True)]
    return reference.convergence([rule.finish(states[0])["components"]])[0]
