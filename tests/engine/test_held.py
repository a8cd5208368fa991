"""What a source holds is counted in every plan, whoever makes it, and however sources are put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine import as_source
from dpca.engine.fold import plan_for
from dpca.engine.fold_rounds import plan_rounds
from dpca.engine.held_out import RemainingSource
from dpca.engine.plan import Held
from dpca.engine.rounds import Averaging, DataParallel
from dpca.engine.shuffled import ShuffledSource
from dpca.engine.source import DerivedSource, Source, ThreadedSource, ZarrSource, held_by, innermost, is_in_memory
from dpca.models.passes import Passes
from dpca.partition import Whole
from dpca.rules.minibatch import InBatches
from dpca.rules.oja import Oja
from storage.progress import no_progress

STACK = ZarrSource("nowhere", (100_000, 40, 40), np.dtype(np.uint8), (500, 40, 40))
WRAPPERS = {
    "shuffled": lambda source: ShuffledSource(source, 0),
    "remaining": lambda source: RemainingSource(source, np.arange(0, 5_000, 7)),
    "threaded": lambda source: ThreadedSource(source, 4),
}
BUDGET = 2**31


def derived(kinds: list[str]) -> Source:
    source: Source = STACK
    for kind in kinds:
        source = WRAPPERS[kind](source)
    return source


def planned(how: str, source: Source) -> int:
    """Bytes of a task by each of the ways in which a source is planned."""
    rule, whole = InBatches(Oja(5), 100), Whole(tuple(source.shape[1:]))
    if how == "fold":
        return plan_for(rule, source, whole, budget=BUDGET).task_bytes
    if how == "passes":
        running: dict[str, Any] = {"client": None, "checkpoints": None, "progress": no_progress}
        return Passes(source, memory_budget=BUDGET, **running).plan(whole, rule).task_bytes
    scheme = Averaging(2, 1000, 100) if how == "averaged" else DataParallel(1000, 2)
    return plan_rounds(rule if how == "averaged" else rule.rule, source, whole, scheme, BUDGET).task_bytes


@given(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=3), st.sampled_from(sorted(WRAPPERS)))
@settings(max_examples=40, deadline=None)
def test_whatever_is_put_on_top_is_counted_by_every_execution(kinds: list[str], outer: str) -> None:
    inner, source = derived(kinds), derived([*kinds, outer])
    row = 40 * 40
    window = held_by(source).rows - held_by(inner).rows
    assert window == (0 if outer == "threaded" else source.window_rows)
    for how in ("fold", "passes", "averaged", "data-parallel"):
        more = planned(how, source) - planned(how, inner)
        # A window more, or what further threads have decoded.
        assert more >= 1.0 * window * row, (how, kinds, outer)
        assert window or more > 0 or held_by(inner).readers > 1, (how, kinds, outer)


def test_every_derived_source_says_what_it_holds() -> None:
    kinds = set(DerivedSource.__subclasses__())
    assert {ShuffledSource, RemainingSource, ThreadedSource} <= kinds
    for kind in kinds:
        assert "window_rows" in vars(kind), kind
    with pytest.raises(TypeError, match="abstract"):
        DerivedSource(STACK)  # type: ignore[abstract]


def test_what_lies_behind_derived_sources(tmp_path: Path) -> None:
    values = np.zeros((20, 3, 3))
    for kinds in ([], ["shuffled"], ["remaining", "threaded"], ["threaded", "shuffled", "remaining"]):
        for inner, here in ((as_source(values), True), (STACK, False), (as_source(da.zeros((20, 3, 3))), False)):
            source = inner
            for kind in kinds:
                source = WRAPPERS[kind](source)
            assert innermost(source) is inner
            assert is_in_memory(source) is here
            assert (held_by(source).whole is None) is (not hasattr(inner, "segment_bytes"))
    assert held_by(STACK) == Held()
