"""Stacks that grow sample by sample: the samples that a follower reads, and the finished store."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.storage import Appender, DataError, StoreError, arrivals, ingest, open_stack, verify
from dpca.storage.errors import BusyError
from dpca.storage.growth.arrivals import growth_of
from tests.storage.transaction.jobs_to_kill import tree

RNG = np.random.default_rng(0)
STEPS = RNG.normal(size=(23, 4, 3)).astype(np.float32)
# The number of each value's sample, and its own in that.
AT, ELEMENT = np.arange(23)[:, None, None], np.arange(12).reshape(4, 3)


def written(target: Path, steps: np.ndarray, chunk_samples: int = 5, **options: object) -> None:
    with Appender(target, steps.shape[1:], steps.dtype, chunk_samples=chunk_samples, **options) as appender:  # type: ignore[arg-type]
        appender.append(steps[appender.n_samples :])


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    chunk=st.integers(1, 7),
    dtype=st.sampled_from(["u1", "<i4", ">f4", "f8", "?"]),
    shape=st.sampled_from([(3,), (2, 3), (2, 3, 2)]),
)
def test_what_is_appended_is_read_however_it_comes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk: int, dtype: str, shape: tuple[int, ...]
) -> None:
    steps = np.random.default_rng(1).integers(0, 2, (sum(sizes), *shape)).astype(dtype)
    target, start = tmp_path_factory.mktemp("steps") / "run.zarr", 0
    with Appender(target, shape, dtype, chunk_samples=chunk) as appender:
        for size in sizes:
            appender.append(steps[start] if size == 1 else steps[start : start + size])
            start += size
            # Whole chunks count, and no sample that waits.
            growth = growth_of(target)
            assert (growth.n_samples if growth else 0) == appender.n_committed == start // chunk * chunk
            assert appender.n_samples == start
            seen = list(islice(arrivals(target), start // chunk))
            assert len(seen) == start // chunk
            np.testing.assert_array_equal(np.concatenate([steps[:0], *seen]), steps[: len(seen) * chunk])
    np.testing.assert_array_equal(np.concatenate(list(arrivals(target))), steps)
    stack = open_stack(target)
    assert (stack.dtype, stack.shape) == (np.dtype(dtype).newbyteorder("="), steps.shape)


def test_a_closed_stack_is_a_stack_like_any_other(tmp_path: Path) -> None:
    written(tmp_path / "run.zarr", STEPS, axes=("y", "x"), parameters={"viscosity": 1e-3})
    stack = open_stack(tmp_path / "run.zarr")
    np.testing.assert_array_equal(stack.samples[...], STEPS)
    assert stack.axes == ("sample", "y", "x")
    assert stack.data_range == (STEPS.min(), STEPS.max())
    assert stack.names.tolist() == [str(i) for i in range(23)]
    assert verify(tmp_path / "run.zarr") == []
    assert [path.name for path in tmp_path.iterdir()] == ["run.zarr"]
    # Done is done: nothing is written, and the number of steps is known.
    before = tree(tmp_path)
    with Appender(
        tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5, axes=("y", "x"), parameters={"viscosity": 1e-3}
    ) as again:
        assert again.n_samples == 23
        with pytest.raises(StoreError, match="closed"):
            again.append(STEPS[0])
    assert tree(tmp_path) == before


def test_other_samples_have_another_fingerprint(tmp_path: Path) -> None:
    for name, steps in (("a", STEPS), ("b", STEPS), ("c", STEPS + 1)):
        written(tmp_path / name, steps)
    a, b, c = (open_stack(tmp_path / name).fingerprint for name in "abc")
    assert a == b != c


def test_a_run_that_failed_goes_on_behind_its_last_chunk(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5) as steps:
        steps.append(STEPS[:13])
        raise ZeroDivisionError
    assert growth_of(tmp_path / "run.zarr")[1:3] == (10, False)  # type: ignore[index]
    with pytest.raises(StoreError, match="creates"):
        open_stack(tmp_path / "run.zarr")
    with (
        Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5) as steps,
        pytest.raises(BusyError, match="being"),
    ):
        assert steps.n_samples == 10
        steps.append(STEPS[10:])
        Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5)
    written(tmp_path / "run.zarr", STEPS)
    written(tmp_path / "calm" / "run.zarr", STEPS)
    assert tree(tmp_path / "run.zarr") == tree(tmp_path / "calm" / "run.zarr")


def test_a_run_of_other_settings_does_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5) as steps:
        steps.append(STEPS[:13])
        raise ZeroDivisionError
    with pytest.raises(StoreError, match="unfinished"):
        Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5, parameters={"dt": 0.1})
    followed = arrivals(tmp_path / "run.zarr", poll=0.01)
    np.testing.assert_array_equal(next(followed), STEPS[:5])
    np.testing.assert_array_equal(next(followed), STEPS[5:10])
    written(tmp_path / "run.zarr", STEPS, 4, overwrite=True)
    with pytest.raises(DataError, match="settings"):
        next(followed)


@pytest.mark.long
def test_a_follower_keeps_up_with_a_writer(tmp_path: Path) -> None:
    # It is closed while it is read: chunks are where they were, or under the final name.
    writer = threading.Thread(target=written, args=(tmp_path / "run.zarr", np.repeat(STEPS, 10, axis=0), 1))
    writer.start()
    found = list(arrivals(tmp_path / "run.zarr", poll=0.001, patience=60))
    writer.join()
    np.testing.assert_array_equal(np.concatenate(found), np.repeat(STEPS, 10, axis=0))


def test_a_finished_stack_of_any_origin_arrives_at_once(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", STEPS)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    np.testing.assert_array_equal(np.concatenate(list(arrivals(tmp_path / "x.zarr", 7))), STEPS[7:])
    with pytest.raises(DataError, match=r"\b23\b.*\b24\b"):
        next(arrivals(tmp_path / "x.zarr", 24))
    with pytest.raises(StoreError, match=r"\b0\.01\b"):
        next(arrivals(tmp_path / "nothing.zarr", patience=0.01, poll=0.01))


def test_a_chunk_that_counts_and_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5) as steps:
        steps.append(STEPS[:13])
        raise ZeroDivisionError
    (chunk,) = tmp_path.glob("run.zarr.partial/store-*/samples/c/1/0/0")
    chunk.unlink()
    followed = arrivals(tmp_path / "run.zarr")
    next(followed)
    with pytest.raises(StoreError, match="missing"):
        next(followed)


def test_an_object_store_takes_steps_too(bucket: str) -> None:
    with Appender(f"{bucket}/run.zarr", (4, 3), "f4", chunk_samples=5) as steps:
        steps.append(STEPS[:12])
        followed = arrivals(f"{bucket}/run.zarr", poll=0.01)
        np.testing.assert_array_equal(next(followed), STEPS[:5])
        np.testing.assert_array_equal(next(followed), STEPS[5:10])
        steps.append(STEPS[12:])
    np.testing.assert_array_equal(np.concatenate(list(followed)), STEPS[10:])
    np.testing.assert_array_equal(open_stack(f"{bucket}/run.zarr").samples[...], STEPS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_shape": (0, 3)}, r"\(0, 3\)"),
        ({"dtype": "c8"}, "complex64"),
        ({"axes": ("y",)}, "axes"),
        ({"axes": ("y", "y")}, "axes"),
        ({"axes": ("sample", "x")}, "axes"),
        ({"chunk_samples": 0}, "chunk_samples"),
        ({"data_range": (1, 0)}, "data_range"),
        ({"parameters": {"nu": float("nan")}}, "parameters"),
    ],
)
def test_wrong_arguments_raise_and_leave_nothing(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Appender(tmp_path / "run.zarr", **{"sample_shape": (4, 3), "dtype": "f4", **options})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (STEPS[0, :3], r"\(3, 3\).* \(4, 3\)"),
        (STEPS[None], "shape"),
        (STEPS.astype("f8"), "float64.* float32"),
        *(
            (np.where(where, np.float32(value), STEPS), "sample 9 .*finite")
            for value in (np.nan, np.inf, -np.inf)
            for where in (AT == 2, (AT == 2) & (ELEMENT == 0), (AT == 2) & (ELEMENT == 11))  # a sample, and one value
        ),
        (np.where(ELEMENT == 5, np.float32(np.nan), STEPS[0]), "sample 7 .*finite"),
    ],
)
def test_invalid_samples_raise_and_none_is_added(tmp_path: Path, samples: np.ndarray, message: str) -> None:
    with Appender(tmp_path / "run.zarr", (4, 3), "f4", chunk_samples=5) as steps:
        steps.append(STEPS[:7])
        with pytest.raises(DataError, match=message):
            steps.append(samples)
        assert steps.n_samples == 7
    np.testing.assert_array_equal(open_stack(tmp_path / "run.zarr").samples[...], STEPS[:7])


def test_a_run_without_steps_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="appended"), Appender(tmp_path / "run.zarr", (4, 3), "f4"):
        pass
    assert list(tmp_path.iterdir()) == []
