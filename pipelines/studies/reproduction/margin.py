"""The default beside every other rule, compared with the exact reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpca.engine.sources.source import Source, as_source
from dpca.models.streaming.streaming_methods import make_rule
from dpca.parameters.streaming import RULE_CLASSES
from dpca.pipelines.studies.convergence.courses import RulePass
from dpca.pipelines.studies.convergence.reference import Reference, exact_reference
from dpca.pipelines.studies.data import Setting
from dpca.pipelines.studies.reproduction.tables import Entry, ReproductionTable
from dpca.pipelines.studies.reproduction.thesis import STEP_OF_SM
from dpca.pipelines.studies.reproduction.trials import BATCH, MEASURE, PIXELS, Make, in_batches, run_whole, shuffled
from dpca.rules import Delayed, ImplicitKrasulina, Krasulina, Oja, OjaSubspace, Power, Sanger, SimilarityMatching

_K = 50
_DEFAULT = "incremental-svd"
_REQUIRED = 1.5


def cifar_margin(setting: Setting) -> ReproductionTable:
    """Every rule on the CIFAR-10 subset, 50 components."""
    images = setting.cifar()[0]
    x = np.ascontiguousarray(images.reshape(len(images), -1))
    reference = exact_reference(as_source(x), _K)
    sources = [source for source, _ in shuffled(x, reference, setting.trials)]
    return _margin("cifar", "CIFAR-10 subset, 5,085 images of 32 x 32 x 3", sources, reference, setting)


def faces_margin(setting: Setting) -> ReproductionTable:
    """Every rule on the photographs of faces, 50 components, one trial (half an hour)."""
    source = as_source(setting.faces())
    reference = exact_reference(source, _K, run=setting.run)
    title = "Labeled Faces in the Wild, 13,233 photographs of 250 x 250 x 3"
    return _margin("lfw-margin", title, [source], reference, setting)


def _margin(name: str, title: str, sources: list[Source], reference: Reference, setting: Setting) -> ReproductionTable:
    lines = _rules(float(reference.explained_variance[0]) / PIXELS[1] ** 2)
    runs = {
        line: [run_whole(make(seed), source, PIXELS, setting.run) for seed, source in enumerate(sources)]
        for line, make in lines.items()
    }
    entries = _measured(runs, reference, setting)
    return ReproductionTable(
        name,
        f"{title}: every rule, k = {_K}",
        MEASURE,
        f"Pixels in [0, 1], random order, one pass, batches of {BATCH}; best components by the {reference.solver} "
        f"solver; {len(sources)} trial(s). l is the largest variance of a component: step sizes with it are those that "
        f"the literature would tune.",
        entries,
        remarks=_margins(entries),
    )


def _rules(largest: float) -> dict[tuple[str, str], Make]:
    """Return functions that make rules, by (rule, setting): all methods with defaults, and with better step sizes."""

    def default(method: str, oversampling: int | None = None) -> Make:
        options = {"oversampling": oversampling}
        return lambda seed: make_rule(method, _K, center=True, options=options, batch_size=BATCH, seed=seed)

    def with_step(kind: Any, step: Any, **how: Any) -> Make:
        return in_batches(lambda seed: kind(_K, step, seed=seed, **how))

    # A unit of 1 makes step sizes literal. Similarity matching has no other unit.
    literal = {"unit": 1.0}
    lines: dict[tuple[str, str], Make] = {(method, "default settings"): default(method) for method in RULE_CLASSES}
    for extra in (0, 100):
        lines[_DEFAULT, f"oversampling {extra}"] = default(_DEFAULT, extra)
    for c in (10, 100):
        for gamma in (0.8, 1.0):
            stochastic: tuple[tuple[str, Any], ...] = (("oja", Oja), ("krasulina", Krasulina))
            for method, kind in stochastic:
                lines[method, f"eta = {c} / (l t^{gamma:g})"] = with_step(kind, Power(c / largest, gamma), **literal)
    for method, linear in (("oja-subspace", OjaSubspace), ("sanger", Sanger)):
        lines[method, "eta = 30 / (l (t + 30))"] = with_step(linear, Delayed(1 / largest, 30.0), **literal)
    for c in (10, 100):
        lines["implicit-krasulina", f"eta = {c} / t^0.8"] = with_step(ImplicitKrasulina, Power(c, 0.8), **literal)
    lines["similarity-matching", "eta = 1 / (2 t + 5)"] = with_step(SimilarityMatching, STEP_OF_SM)
    return lines


def _measured(runs: dict[tuple[str, str], list[RulePass]], reference: Reference, setting: Setting) -> list[Entry]:
    """Measure all results in one pass over the source, which costs more than the products."""
    bases = [run.found[-1]["components"] for line in runs.values() for run in line if not run.failure]
    values = iter(reference.convergence(bases, run=setting.run))
    entries = []
    for (rule, how), line in runs.items():
        good = [run for run in line if not run.failure]
        failure = next((run.failure for run in line if run.failure), "")
        seconds = float(np.mean([run.seconds[-1] for run in good])) if good else 0.0
        entries.append(Entry(rule, how, None, tuple(next(values) for _ in good), seconds, failure))
    return entries


def _margins(entries: list[Entry]) -> list[str]:
    default = entries[0]
    others = [entry for entry in entries if entry.rule != _DEFAULT and entry.values]
    plain = [entry for entry in others if entry.setting == "default settings"]
    remarks = []
    for rivals, what in ((plain, "rule with its default settings"), (others, "rule with any setting")):
        rival = min(rivals, key=lambda entry: entry.mean)
        # The default can have the best components themselves.
        margin = rival.mean - default.mean if np.isfinite(default.mean) else np.inf
        verdict = "met" if margin >= _REQUIRED else f"missed by {_REQUIRED - margin:.2f}"
        remarks.append(
            f"{default.rule} has {default.mean:.2f}; the next {what} is {rival.rule} ({rival.setting}) with "
            f"{rival.mean:.2f}: {margin:.2f} apart, {_REQUIRED} required, {verdict}."
        )
    return remarks
