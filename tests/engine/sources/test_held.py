"""Plans include the memory of sources, for every combination of sources."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.engine.folds.fold import plan_for
from dpca.engine.folds.fold_device import ThreadedSource
from dpca.engine.folds.rounds import Averaging, DataParallel, RoundScheme
from dpca.engine.sources.held_out import RemainingSource
from dpca.engine.sources.shuffled import ShuffledSource
from dpca.engine.sources.source import Source, ZarrSource, as_source
from dpca.partition import Whole
from dpca.rules.base.minibatch import InBatches
from dpca.rules.stochastic.oja import Oja
from dpca.storage.run import Run

STACK = ZarrSource("nowhere", (100_000, 40, 40), np.dtype(np.uint8), (500, 40, 40))
WRAPPERS = {
    "shuffled": lambda source: ShuffledSource(source, 0),
    "remaining": lambda source: RemainingSource(source, np.arange(0, 5_000, 7)),
    "threaded": lambda source: ThreadedSource(source, 4),
}
SCHEMES = [None, Averaging(2, 1000, 100), DataParallel(1000, 2)]


def derived(kinds: list[str], inner: Source = STACK) -> Source:
    source = inner
    for kind in kinds:
        source = WRAPPERS[kind](source)
    return source


def planned(scheme: RoundScheme | None, source: Source) -> int:
    """Bytes of a task."""
    rule, whole = InBatches(Oja(5), 100), Whole(tuple(source.shape[1:]))
    given = rule.rule if isinstance(scheme, DataParallel) else rule
    return plan_for(given, source, whole, scheme=scheme, run=Run(memory=2**31)).task_bytes


@given(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=3), st.sampled_from(sorted(WRAPPERS)))
@settings(max_examples=40, deadline=None)
def test_whatever_is_put_on_top_is_counted_by_every_execution(kinds: list[str], outer: str) -> None:
    inner, source = derived(kinds), derived([*kinds, outer])
    window = source.buffered_rows - inner.buffered_rows
    assert window == (0 if outer == "threaded" else source.window_rows)  # type: ignore[attr-defined]
    for scheme in SCHEMES:
        more = planned(scheme, source) - planned(scheme, inner)
        # A window more, or what further threads have decoded.
        assert more >= 1.0 * window * 40 * 40, (scheme, kinds, outer)
        assert window or more > 0 or inner.n_readers > 1, (scheme, kinds, outer)


@pytest.mark.parametrize("kinds", [[], ["shuffled"], ["remaining", "threaded"], ["threaded", "shuffled", "remaining"]])
def test_derived_sources_answer_for_those_behind_them(kinds: list[str]) -> None:
    for inner, here in (
        (as_source(np.zeros((20, 3, 3))), True),
        (STACK, False),
        (as_source(da.zeros((20, 3, 3))), False),
    ):
        source = derived(kinds, inner)
        assert source.in_process is here
        assert source.segment_bytes == inner.segment_bytes
        assert (source.numbers(3, 5) == (3, 5)) is (source.buffered_rows == 0)
        assert source.n_readers == 4 ** kinds.count("threaded")
    assert (STACK.buffered_rows, STACK.n_readers, STACK.segment_bytes) == (0, 1, None)
