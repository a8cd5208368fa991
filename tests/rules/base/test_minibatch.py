"""Batches of one size, whatever pieces the samples come in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.rule import Rule


@dataclass(frozen=True)
class Recording(Rule):
    """Keeps the rows of every update, and where each ended."""

    mergeable = True
    least_samples = 0

    def _layout(self, n_features, dtype):
        return {"rows": ((0, n_features), dtype), "ends": ((0,), int)}

    def _take(self, state, batch):
        state.arrays["rows"] = np.concatenate([state.arrays["rows"], batch])
        state.arrays["ends"] = np.append(state.arrays["ends"], len(batch))

    def merge(self, a, b):
        for name in b.arrays:
            a.arrays[name] = np.concatenate([a.arrays[name], b.arrays[name]])
        return a

    def _finish(self, state):
        return state.arrays


@given(st.integers(0, 40), st.integers(1, 12), st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None)
def test_every_update_gets_so_many_samples_in_order(n, size, cuts):
    x = np.arange(2 * n).reshape(n, 2)
    rule = InBatches(Recording(), size)
    state = rule.init(2, x.dtype)
    for a, b in itertools.pairwise([0, *sorted(min(c, n) for c in cuts), n]):
        state = rule.update(state, x[a:b])
    found = rule.finish(state)
    np.testing.assert_array_equal(found["rows"], x)
    assert found["ends"].tolist() == [size] * (n // size) + [n % size] * (n % size > 0)


def test_a_merge_takes_what_waits_on_both_sides_and_leaves_the_second_alone():
    x = np.arange(20).reshape(10, 2)
    rule = InBatches(Recording(), 4)
    a, b = (rule.update(rule.init(2, x.dtype), part) for part in (x[:5], x[5:]))
    before = {name: value.copy() for name, value in b.arrays.items()}
    found = rule.finish(rule.update(rule.merge(a, b), x[:2]))
    np.testing.assert_array_equal(found["rows"], np.concatenate([x, x[:2]]))
    assert found["ends"].tolist() == [4, 1, 4, 1, 2]
    for name, value in before.items():
        np.testing.assert_array_equal(b.arrays[name][: len(value)], value)
    assert b.counts["n_held"] == 1


def test_a_flushed_state_has_no_buffer_and_is_merged_and_continued_like_another():
    x = np.arange(40).reshape(20, 2)
    rule, found = InBatches(Recording(), 4), []
    for flushed in (False, True):
        a, b = (rule.update(rule.init(2, x.dtype), part) for part in (x[:5], x[5:12]))
        if flushed:
            a, b = rule.flush(a), rule.flush(b)
            assert a.arrays["buffered_rows"].shape == b.arrays["buffered_rows"].shape == (0, 2)
        found.append(rule.finish(rule.update(rule.merge(a, b), x[12:])))
    for name, value in found[0].items():
        if name != "buffered_rows":
            np.testing.assert_array_equal(found[1][name], value)
    assert found[1]["ends"].tolist() == [4, 1, 4, 3, 4, 4]
    np.testing.assert_array_equal(found[1]["rows"], x)


@pytest.mark.parametrize(("size", "rows"), [(1, 256), (100, 200), (256, 256), (1000, 256)])
def test_it_asks_for_whole_batches_that_are_not_larger_than_a_read(size, rows):
    rule = InBatches(Recording(), size, at_once=256)
    assert rule.batch_rows("u1") == rows
    # Samples of several reads fill a batch: its work needs memory in any case.
    assert rule.work_bytes(1, 10, "u1") == rule.work_bytes(5000, 10, "u1") == Recording().work_bytes(size, 10, "u1")
