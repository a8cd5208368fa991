"""``dpca compress`` of several variables of a file, each with its own goal."""

from __future__ import annotations

import json
import os
import shutil
import time
from argparse import ArgumentTypeError
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray

from dpca import open_compressed
from dpca.cli import main
from dpca.cli.goals import goal_by_variable
from dpca.cli.job_file import read_job_file
from dpca.report.record import read_report
from dpca.storage import DataError
from tests.conftest import smooth_images

BOUNDS = {"u": 0.01, "p": 40.0}

pytestmark = pytest.mark.usefixtures("small_pictures")


@pytest.fixture
def fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    """Write variables in other units and on other grids to ``fields.nc``, and return their values."""
    monkeypatch.chdir(tmp_path)
    u = smooth_images(20, (16, 24)).astype(np.float32) / 100
    p = smooth_images(20, (12, 16), seed=1).astype(np.float32) * 400 + 50000
    data = {"u": (("time", "y", "x"), u), "p": (("time", "lat", "lon"), p)}
    xarray.Dataset(data, {"time": np.arange(20.0)}).to_netcdf("fields.nc", engine="scipy")
    return {"u": u, "p": p}


def _command(quality: str, scheduler: str, *more: str, source: str = "fields.nc") -> list[str]:
    return ["compress", source, "small/", "--cell", "8", "--quality", quality, "--scheduler", scheduler, *more]


def test_each_variable_keeps_its_own_bound(
    fields: dict[str, np.ndarray], scheduler: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.time() - 1000
    monkeypatch.setattr("dpca.cli.work.started", lambda: began)
    command = _command("max-error=u:0.01,p:40", scheduler, "--metrics", "dpca.prom")
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    reports = [read_report(Path(f"small/{name}.report")) for name in fields]
    assert [one["bytes_given"] for one in reports] == [None, None]  # the file has other variables, too
    starts = [one["stages"]["start"]["seconds"] for one in reports]
    assert starts[1] < 1000 <= starts[0]  # the second store does not begin with the program
    smaller = sum(x.nbytes for x in fields.values()) / sum(one["bytes_compressed"] for one in reports)
    expected = f"2 variables, {smaller:.1f} times smaller than the decoded samples; next: dpca export small/u.zarr out/"
    assert lines[-1] == f"'small/': {expected}"
    for line, (name, x) in zip(lines[-3:-1], fields.items(), strict=True):
        error = np.abs(open_compressed(f"small/{name}.zarr")[...] - x.astype("f8")).max()
        assert 0.5 * BOUNDS[name] < error <= BOUNDS[name] * 1.0001
        assert line.startswith(f"'small/{name}.zarr': ")
        assert line.endswith(f"largest error {error:.4g}, promised {BOUNDS[name]:g}")
    metrics = Path("dpca.prom").read_text()
    assert all(f'small/{name}.zarr"' in metrics for name in fields)
    opened = {name: xarray.open_zarr(f"dpca::small/{name}.zarr")["samples"] for name in fields}
    assert xarray.Dataset(opened).sizes == {"time": 20, "y": 16, "x": 24, "lat": 12, "lon": 16}


def test_only_what_is_missing_is_made(
    fields: dict[str, np.ndarray], scheduler: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(_command("max-error=u:0.01", scheduler)) == 0
    made = os.stat("small/u.zarr/zarr.json").st_mtime_ns
    capsys.readouterr()
    for n_done in (1, 2):
        assert main(_command("max-error=u:0.01,p:40", scheduler)) == 0
        out = capsys.readouterr().out
        assert out.count("nothing to do") == n_done
        assert "2 variables" in out
        assert os.stat("small/u.zarr/zarr.json").st_mtime_ns == made
    assert main(_command("max-error=u:0.02,p:40", scheduler)) == 4
    assert "other settings" in capsys.readouterr().err
    # What is done is recognized before the libraries that compute are imported, also by a command of its own.
    monkeypatch.delattr("dpca.cli.jobs.partitioned_model")
    assert main(_command("max-error=u:0.01,p:40", scheduler)) == 0
    alone = ["--cell", "8", "--scheduler", scheduler, "--key", "p", "--quality", "max-error=40"]
    assert main(["compress", "fields.nc", "small/p.zarr", *alone]) == 0


def test_each_store_is_that_of_its_own_command(fields: dict[str, np.ndarray], scheduler: str) -> None:
    assert main(_command("psnr=p:40,u:30", scheduler)) == 0
    alone = ["--cell", "8", "--scheduler", scheduler, "--key", "p", "--quality", "psnr=40"]
    assert main(["compress", "fields.nc", "alone.zarr", *alone]) == 0
    same, other = open_compressed("small/p.zarr"), open_compressed("alone.zarr")
    assert same.facts["goal"] == other.facts["goal"]
    np.testing.assert_array_equal(same[...], other[...])
    assert open_compressed("small/u.zarr").facts["goal"]["value"] == 30


def test_variables_of_groups(fields: dict[str, np.ndarray], scheduler: str) -> None:
    with h5py.File("run.h5", "w") as file:
        file["flow/u"], file["flow/p"] = fields["u"], fields["p"]
    assert main(_command("max-error=/flow/u:0.01", scheduler, source="run.h5")) == 0
    assert np.abs(open_compressed("small/flow/u.zarr")[...] - fields["u"]).max() <= 0.010001


@pytest.mark.parametrize(
    ("quality", "more", "says"),
    [
        ("max-error=u:0.01,x:1", (), "no array 'x'"),
        ("max-error=u:0.01,p:40", ("--key", "u"), "--key"),
        ("max-error=u:0.01,p:40", ("--data-range", "0,3"), "--data-range"),
    ],
)
def test_nothing_is_made_if_a_variable_is_wrong(
    fields: dict[str, np.ndarray],
    scheduler: str,
    capsys: pytest.CaptureFixture[str],
    quality: str,
    more: tuple[str, ...],
    says: str,
) -> None:
    assert main(_command(quality, scheduler, *more)) == 3
    assert says in capsys.readouterr().err
    assert not Path("small").exists()


@pytest.mark.parametrize(
    "text", ["u:1", "max-error=u:1,p", "max-error=u:1,u:2", "max-error=:1", "rank=u:1,p:2", "psnr=u:0"]
)
def test_texts_that_name_no_goals(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="NAME:X"):
        goal_by_variable(text)


def test_plans_have_one_goal(fields: dict[str, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "fields.nc", "--quality", "max-error=u:1,p:2"])
    assert "u:1" in capsys.readouterr().err


def _job(text: str, scheduler: str = "tcp://127.0.0.1:1") -> str:
    Path("job.toml").write_text(f'inputs = "*.nc"\ncell = 8\nscheduler = "{scheduler}"\n{text}\n')
    return "job.toml"


def test_variables_of_a_job_file_have_their_own_bounds(
    fields: dict[str, np.ndarray], scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("fields.nc", "more.nc")
    path = _job('output = "small/{name}"\ntarget.max-error = {u = 0.01, p = 40}', scheduler)
    made = [f"{os.getcwd()}/small/{name}/{key}.zarr" for name in ("fields", "more") for key in ("u", "p")]
    assert sorted(read_job_file(path).outputs) == sorted(made)
    for event in ("done", "skipped"):
        assert main(["job", "run", path]) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert sorted(one["output"] for one in events if one["event"] == event) == sorted(made)
    record = json.loads(Path("job.record.json").read_text())
    for store in made:
        name = Path(store).stem
        error = np.abs(open_compressed(store)[...] - fields[name].astype("f8")).max()
        assert 0.5 * BOUNDS[name] < error <= BOUNDS[name] * 1.0001
        assert [Path(one).stem for one in record[store]["inputs"]] == [Path(store).parent.name]


def test_outputs_of_variables_are_no_inputs(fields: dict[str, np.ndarray]) -> None:
    Path("in/p.zarr").mkdir(parents=True)
    path = Path(_job('output = "in"\ntarget.max-error = {u = 1, p = 2}'))
    path.write_text(path.read_text().replace("*.nc", "in/*"))
    with pytest.raises(DataError, match=r"in/p\.zarr"):  # it is no compressed store
        read_job_file(str(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("target.max-error = {}", "max-error="),
        ('target.max-error = {u = "x"}', "u:x"),
        ("target.max-error = {u = -1}", "u:-1"),
        ('key = "u"\ntarget.max-error = {u = 1}', "key"),
        ("data-range = [0, 3]\ntarget.max-error = {u = 1}", "data-range"),
    ],
)
def test_job_files_with_wrong_goals(fields: dict[str, np.ndarray], text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_job_file(_job(f'output = "small"\n{text}'))
