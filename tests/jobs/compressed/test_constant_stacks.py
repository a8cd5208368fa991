"""Stacks whose values are all the same: nothing to explain, nothing lost, and a range that is not empty."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dpca.cli import main
from dpca.metrics import mse
from dpca.pipelines import celeba_cpca, lsun_streaming
from dpca.storage import DataError, ingest, open_stack, verify
from dpca.storage.ranges import checked_range, found_range
from dpca.storage.run import Run
from tests.helpers.resealing import edit_facts

pytestmark = pytest.mark.usefixtures("small_pictures")

SHAPE = (20, 16, 18)


@pytest.mark.usefixtures("drawn_pictures")
@pytest.mark.parametrize(
    ("constant", "program"),
    [(0.0, "cells"), (3.5, "cells with a target"), (-1e-150, "bands"), (-2.0, "stream"), (-1e-150, "stream")],
)
def test_a_whole_job_on_a_constant(
    constant: float, program: str, scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.full(SHAPE, constant))
    output = tmp_path / "out.zarr"
    argv = ["--source", str(tmp_path / "x.npy"), "--output", str(output), "--reconstruct", "--scheduler", scheduler]
    asked = {
        "cells": ["--cell", "8", "--components", "2"],
        "cells with a target": ["--cell", "8", "--target-psnr", "40"],
        "bands": ["--band-size", "50", "--components", "2"],
        "stream": ["--components", "2"],
    }
    run = lsun_streaming.main if program == "stream" else celeba_cpca.main
    assert run([*argv, *asked[program]]) == 0, capsys.readouterr().err
    group = zarr.open_group(str(output), mode="r")
    np.testing.assert_array_equal(group["reconstructions"][...], np.full(SHAPE, constant))
    assert np.isposinf(group["psnr"][...]).all()
    assert (group["mse"][...] == 0).all()
    np.testing.assert_allclose(group["ssim"][...], 1)
    report = json.loads((tmp_path / "out.report" / "report.json").read_text())
    assert report["mse"] == 0
    assert not list(verify(output))


def test_the_commands_on_a_constant(scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.full(SHAPE, -7, np.float32))
    place = {name: str(tmp_path / name) for name in ("s", "m", "c", "r")}
    where = ["--scheduler", scheduler]
    for argv in (
        ["ingest", str(tmp_path / "x.npy"), place["s"]],
        ["fit", place["s"], place["m"], "--cell", "8", "--components", "3"],
        ["transform", place["m"], place["s"], place["c"], "--reconstruct"],
        ["reconstruct", place["m"], place["c"], place["r"]],
    ):
        assert main([*argv, *where]) == 0, capsys.readouterr().err
    assert open_stack(place["s"]).data_range == (-7, 0)
    np.testing.assert_array_equal(open_stack(place["r"]).samples[...], np.full(SHAPE, -7))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_found_range_holds_the_values_and_has_a_width(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    if not math.isfinite(high - low):
        with pytest.raises(DataError, match="difference"):
            found_range(low, high)
        return
    found = found_range(low, high)
    assert found[0] <= low <= high <= found[1]
    assert 0 < found[1] - found[0] < math.inf
    assert checked_range(found) == found
    if low < high:
        assert found == (low, high)


@pytest.mark.parametrize("stated", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1), (-1e308, 1e308), "ab", 3, None, (1,)])
def test_a_stated_range_that_is_none(stated: object) -> None:
    with pytest.raises(DataError, match="data_range|difference") as told:
        checked_range(stated)
    assert "\n" not in str(told.value)


def test_values_whose_difference_is_infinite_are_refused(tmp_path: Path) -> None:
    x = np.zeros(SHAPE)
    x[0, 0, 0], x[1, 0, 0] = -1e308, 1e308
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(DataError, match="difference"):
        ingest(tmp_path / "x.npy", tmp_path / "s", run=Run(threads=1))
    assert not (tmp_path / "s").exists()


def test_a_store_of_before_that_states_a_constant_still_opens(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full(SHAPE, 3.5))
    ingest(tmp_path / "x.npy", tmp_path / "s", run=Run(threads=1))
    edit_facts(tmp_path / "s", lambda facts: facts.update(data_range=[3.5, 3.5]))
    assert open_stack(tmp_path / "s").data_range == (0, 3.5)


@pytest.mark.parametrize("data_range", [0, -1, math.nan, math.inf])
def test_errors_have_no_unit_without_a_width(data_range: float) -> None:
    with pytest.raises(ValueError, match="data_range"):
        mse(np.zeros((2, 3)), np.ones((2, 3)), data_range=data_range)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exponent", [0.5, 0.9, 0.99, -0.5, -0.9])
def test_errors_in_units_of_an_extreme_range(dtype: type, exponent: float) -> None:
    """The error is half of the range, whatever the range is."""
    width = float(dtype(float(np.finfo(dtype).max) ** exponent))
    x = np.zeros((3, 5, 7), dtype)
    np.testing.assert_allclose(mse(x, x + dtype(width / 2), data_range=width), 0.25, rtol=1e-5)
