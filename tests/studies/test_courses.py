"""Running a rule over a source and noting what it finds on the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpca.engine.sources.source import as_source
from dpca.pipelines.studies.convergence.courses import marks_for, run_rule
from dpca.pipelines.studies.convergence.reference import exact_reference
from dpca.rules import AcceleratedBlockPower, Constant, IncrementalSVD, Oja, Sanger
from dpca.rules.base.minibatch import InBatches
from dpca.storage.errors import DataError
from tests.conftest import smooth_images


@pytest.fixture
def images() -> np.ndarray:
    return smooth_images(230, (10, 12, 3))


@pytest.mark.parametrize("chunk", [7, 64, 230])
def test_what_is_noted_is_what_the_rule_had_found_by_then(images: np.ndarray, chunk: int, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "x.zarr"), data=images, chunks=(chunk, 10, 6, 3))
    rule = AcceleratedBlockPower(3, seed=1)
    run = run_rule(InBatches(rule, 20), as_source(str(tmp_path / "x.zarr")), [40, 100, 230], value_range=(0, 255))
    x = images.reshape(230, -1).astype(np.float32) * np.float32(1 / 255)
    state = rule.init(360, np.float32)
    for start in range(0, 100, 20):
        state = rule.update(state, x[start : start + 20])
    np.testing.assert_array_equal(run.found[1]["components"], rule.finish(state)["components"])
    assert run.samples == [40, 100, 230]
    assert run.seconds == sorted(run.seconds)
    assert run.seconds[0] > 0
    whole = run_rule(InBatches(rule, 20), as_source(images), [230], value_range=(0, 255))
    np.testing.assert_array_equal(run.found[2]["components"], whole.found[0]["components"])


def test_samples_after_a_mark_are_not_in_what_is_noted_there(images: np.ndarray) -> None:
    some = run_rule(IncrementalSVD(3), as_source(images), [100]).found[0]
    np.testing.assert_allclose(some["mean"], images[:100].reshape(100, -1).mean(axis=0))


def test_the_range_becomes_0_to_1_and_nothing_else_changes(images: np.ndarray) -> None:
    source = as_source(images)
    plain = run_rule(IncrementalSVD(3, 20), source, [230]).found[0]
    scaled = run_rule(IncrementalSVD(3, 20), source, [230], value_range=(-100, 300)).found[0]
    np.testing.assert_allclose(scaled["mean"], (plain["mean"] + 100) / 400, rtol=1e-5)
    np.testing.assert_allclose(scaled["explained_variance"], plain["explained_variance"] / 400**2, rtol=1e-4)


def test_a_course_falls_as_a_good_rule_learns(images: np.ndarray) -> None:
    source = as_source(images)
    reference = exact_reference(source, 3)
    course = run_rule(InBatches(IncrementalSVD(3, 100), 20), source, [20, 100, 230]).course("svd", reference)
    assert course.convergence[0] > -2
    # Samples no more than directions kept: nothing was lost.
    assert course.convergence[2] < -6
    assert (course.rule, course.failure) == ("svd", "")


def test_a_rule_that_diverges_keeps_what_it_had_and_says_why(images: np.ndarray) -> None:
    source = as_source(images.astype(np.float32))
    run = run_rule(InBatches(Sanger(3, Constant(0.05), unit=1.0), 20), source, [20, 230])
    assert "diverged" in run.failure
    assert len(run.found) < 2
    reference = exact_reference(source, 3)
    assert run.course("sanger", reference).failure == run.failure


def test_bad_samples_are_no_failure_of_the_rule(images: np.ndarray) -> None:
    x = images.astype(np.float32)
    x[150, 0, 0, 0] = np.inf
    with pytest.raises(DataError, match="sample.150"):
        run_rule(InBatches(Oja(2), 20), as_source(x), [230])


@given(n=st.integers(1, 100_000), points=st.integers(1, 40), batch=st.integers(1, 500))
def test_marks_are_whole_batches_and_end_with_the_last_sample(n: int, points: int, batch: int) -> None:
    marks = marks_for(n, points, batch)
    assert marks == sorted(set(marks))
    assert 1 <= len(marks) <= points
    assert marks[-1] == n
    assert all(mark % batch == 0 and mark > 0 for mark in marks[:-1])


def test_marks_grow_by_a_factor() -> None:
    assert marks_for(10_000, 3, 100) == [100, 1000, 10_000]
    assert marks_for(60_000, 1, 100) == [60_000]
