"""A sample of the stack: spread over the stack, read once, with correct indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import dpca.engine.sources.sampling as sampling
from dpca.engine.sources.sampling import read_samples, spread_samples
from dpca.engine.sources.source import as_source


@given(st.integers(1, 500), st.data())
def test_one_sample_in_each_of_equal_parts(n: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, n))
    chosen = spread_samples(n, count, np.random.default_rng(0))
    assert len(chosen) == count
    for i, sample in enumerate(chosen):
        assert i * n // count <= sample < (i + 1) * n // count


@pytest.mark.parametrize("span_bytes", [1, 100, 2**26])
def test_what_is_read_is_what_was_chosen(span_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(53, 4, 3)).astype(np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 2, 3))
    monkeypatch.setattr(sampling, "_SPAN_BYTES", span_bytes)
    for source in (as_source(x), as_source(str(tmp_path / "x.zarr"))):
        for chosen in (np.arange(53), np.array([0, 9, 10, 52]), np.array([30])):
            read = np.concatenate(list(read_samples(source, chosen)))
            np.testing.assert_array_equal(read, x[chosen])


def test_the_samples_of_a_chunk_are_read_together_and_other_chunks_are_not_read(tmp_path: Path) -> None:
    x = np.arange(53.0)[:, None]
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(10, 1))
    blocks = read_samples(as_source(str(tmp_path / "x.zarr")), np.array([3, 10, 19, 20, 41, 50]))
    assert [block.ravel().tolist() for block in blocks] == [[3], [10, 19], [20], [41], [50]]
