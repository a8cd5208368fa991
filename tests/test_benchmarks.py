"""The benchmarks run, say what they divided by what, and notice what became worse."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca.storage import ReadOptions, ingest
from tests.benchmarks import denoised_movie, killed_run, many_jpegs, run, terabyte, two_large_fields
from tests.benchmarks.inputs import Inputs
from tests.benchmarks.sides import Line, at_least, at_most, compared, one_processor, ratio_of
from tests.benchmarks.speed import cluster_speed, many_components, scheduler_load, scheduler_share, spread_speed
from tests.benchmarks.speed.ingest_speed import write_archive
from tests.conftest import smooth_images


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def quotient(line: dict[str, Any]) -> float:
    """Compute a ratio from what the line says of it."""
    above, below = (part.strip("()").split(" + ") for part in line["what"].split(" / "))
    sides = line["sides"]
    return float(sum(sides[name] for name in above) / sum(sides[name] for name in below))


@pytest.mark.usefixtures("small_pictures")
def test_every_stage_prints_the_ratios_of_its_sides(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [name for name in run.STAGES if name not in run.ON_CLUSTERS]
    assert run.main(["--quick", "--rounds", "1", "--only", *stages]) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert len({line["name"] for line in lines}) == len(lines) > 40
    for line in lines:
        assert line["where"]
        assert line["n"] > 0
        if line["sides"]:
            assert line["ratio"] == pytest.approx(quotient(line), rel=1e-3)
        elif "convergence" not in line["name"]:
            assert line["ratio"] is None
            assert "not installed" in line["what"]
    asked = {line["name"]: line["asked"] for line in lines}
    assert (asked["ingest"], asked["fit, cells of 10"], asked["scores pass"]) == (1.5, 1.4, 1.8)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system keeps no thread on a processor")
def test_all_threads_work_on_one_processor_for_a_while() -> None:
    before, ended = os.sched_getaffinity(0), threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    with one_processor():
        assert len(os.sched_getaffinity(0)) == len(os.sched_getaffinity(other.native_id or 0)) == 1
    assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id or 0) == before
    ended.set()
    other.join()


def test_the_programs_run_from_anywhere(tmp_path: Path) -> None:
    program = Path(run.__file__)
    shown = subprocess.run(
        [sys.executable, program, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "--compare" in shown.stdout


def test_workers_are_compared(cluster: Any, tmp_path: Path) -> None:
    lines = list(cluster_speed.compared_workers(Inputs(tmp_path, rounds=1, quick=True), cluster, cluster))
    assert [line.unit for line in lines] == ["wall s"] * 3 + ["CPU s"]
    dask = lines[-1].sides
    assert dask["Dask"] == pytest.approx(dask["on a cluster"] - dask["in this process"], rel=1e-3)


def test_a_spread_basis_is_compared(cluster: Any, tmp_path: Path) -> None:
    path = spread_speed.stack(tmp_path, 40, 2**12, "uint8")
    time, memory = spread_speed.compared_sides(path, 1, cluster, cluster, batch=100, spare=60)
    assert (time.unit, memory.unit) == ("CPU s", "bytes")
    assert set(time.sides) == set(memory.sides) == {"one worker", "spread"}


def test_no_two_samples_of_a_linked_stack_are_equal(tmp_path: Path) -> None:
    x = zarr.open_array(spread_speed.stack(tmp_path, 437, 64, "float32"), mode="r")[:].reshape(437, 64)
    assert len(np.unique(x, axis=0)) == 437
    np.testing.assert_array_equal(x[200:210, :4], x[:10, :4])  # but slabs repeat


def test_what_became_worse_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--quick", "--rounds", "1", "--only", "partial-fit"]
    assert run.main(command) == 0
    line = json.loads(capsys.readouterr().out)
    for factor, code in ((0.01, 1), (100, 0)):
        (tmp_path / "before.jsonl").write_text(json.dumps(line | {"ratio": line["ratio"] * factor}) + "\n")
        assert run.main([*command, "--compare", "before.jsonl"]) == code
        assert ("worse by more than 15%" in capsys.readouterr().err) == bool(code)


def line_of(ratio: float | None, better: str, unit: str) -> Line:
    make = at_most if better == "lower" else at_least
    return make(1.0, name="a", ratio=ratio, what="a / b", sides={}, unit=unit, where="there", n=1)


@pytest.mark.parametrize(
    ("old", "new", "better", "unit", "worse"),
    [
        (1.0, 1.14, "lower", "CPU s", False),
        (1.0, 1.16, "lower", "CPU s", True),
        (1.0, 0.5, "lower", "CPU s", False),
        (20.0, 16.0, "higher", "CPU s", True),
        (20.0, 40.0, "higher", "CPU s", False),
        (1.9, 1.5, "higher", "wall s", False),
        (-7.4, -7.2, "lower", "variance", True),
        (-7.4, -9.0, "lower", "variance", False),
        (1.0, 0.9990, "higher", "share", True),
        (1.0, None, "higher", "CPU s", False),
    ],
)
def test_a_change_for_the_worse_beyond_the_margin(
    old: float, new: float | None, better: str, unit: str, worse: bool
) -> None:
    before = line_of(old, better, unit)
    assert compared(before, replace(before, ratio=new))[1] is worse


def test_the_median_of_the_rounds_counts() -> None:
    rounds = [{"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 6.0, "b": 1.0, "c": 2.0}, {"a": 90.0, "b": 1.0, "c": 2.0}]
    found = ratio_of(rounds, ["a"], ["b", "c"])
    assert (found["ratio"], found["what"], found["sides"]["a"]) == (2.0, "a / (b + c)", 6.0)


def test_a_benchmark_runs_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    program = Path(__file__).parent / "benchmarks" / "speed" / "ingest_speed.py"
    monkeypatch.setattr(sys, "argv", [str(program), "--quick", "--rounds", "1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program), run_name="__main__")
    assert ended.value.code == 0
    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == "ingest"
    assert len(names) == len(set(names)) > 1


def test_the_scheduler_is_loaded_with_a_fold_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert scheduler_load.main(["--workers", "20", "--tasks", "500"]) == 0
    spent, held = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert spent["where"] == held["where"] == "20 workers, 500 tasks"
    assert spent["ratio"] == pytest.approx(quotient(spent), rel=1e-3)
    assert spent["sides"]["graph"] > 0 < spent["sides"]["tasks"]


def test_the_scheduler_is_little_busy_with_jobs_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--workers", "20", "--terabytes", "0.0001", "--side", "20", "--seconds", "0.5"]
    assert scheduler_share.main(small) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [line["name"].split(",")[1] for line in lines] == [" fit of streaming", " fit of cells", " pass over shards"]
    for line in lines:
        assert line["ratio"] == pytest.approx(quotient(line), rel=1e-3)


def test_many_components_are_held_against_their_products(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--samples", "400", "--components", "20", "--side", "32", "--part", "200"]
    assert many_components.main(small) == 0
    memory, time, missed = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert memory["ratio"] <= memory["asked"] == 1
    assert missed["ratio"] <= missed["asked"] == 1
    assert time["sides"]["fit"] > time["sides"]["products"] > 0


def test_a_pass_over_a_synthetic_stack_is_held_against_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert terabyte.main(["--gigabytes", "0.002", "--side", "24"]) == 0
    lines = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert len(lines) == 3
    memory = lines["memory of a pass, streaming, against its plan"]
    assert memory["ratio"] <= memory["asked"] == 1
    times = lines["a pass, streaming, against its plan"]["sides"]
    assert times["taken by other programs"] >= 0 < times["workers' processors"]


def test_a_movie_is_denoised_within_its_planned_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert denoised_movie.main(["--gigabytes", "0.002", "--side", "32", "--time-filter"]) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    # Times are those of the clock less what other programs took, which can be all of so short a job.
    assert [line["unit"] for line in lines[:2]] != [lines[2]["unit"]] * 2
    assert 0 < lines[2]["ratio"] <= lines[2]["asked"] == 1
    assert not list(tmp_path.iterdir())


def test_two_large_fields_are_fitted_within_their_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert two_large_fields.main(["--gigabytes", "0.002", "--side", "32"]) == 0
    worker, program, time = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert 0 < worker["ratio"] <= worker["asked"] == 1
    assert program["sides"]["program and scheduler"] > 2**26
    assert time["sides"]["workers' processors"] > 0
    assert not list(tmp_path.iterdir())


def test_many_kept_jpegs_are_held_against_their_decoder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, number in {"_TEXTURES": 300, "_TIMES": 2, "_SHARDS_OF_A_TASK": 1}.items():
        monkeypatch.setattr(many_jpegs, name, number)
    assert many_jpegs.main(["--gigabytes", "0.001", "--side", "24", "--rounds", "1"]) == 0
    whole, alone = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    for line in (whole, alone):
        assert line["ratio"] == pytest.approx(quotient(line), rel=1e-3)
        assert line["n"] % 512 == 0
    assert whole["asked"] == 0.8
    assert 0 < whole["ratio"] < alone["ratio"]


def test_a_stack_of_links_has_the_samples_of_its_shards(tmp_path: Path) -> None:
    source = write_archive(tmp_path / "a.tar", smooth_images(10, (24, 24, 3)))
    files = ingest(source, tmp_path / "s.zarr", reading=ReadOptions(keep_jpegs=True), shard_bytes=4 * 24 * 24 * 3)
    stack = many_jpegs.lengthened(files, tmp_path / "links.zarr", 3)
    np.testing.assert_array_equal(stack.samples[:], np.tile(files.samples[:8], (3, 1, 1, 1)))


@pytest.mark.parametrize("estimator", ["streaming", "cells"])
def test_a_job_that_is_killed_is_recorded_and_has_the_same_bytes(
    estimator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ["--gigabytes", "0.2", "--side", "32", "--estimator", estimator]
    assert killed_run.main([*size, "--components", "3", "--every", "0.5", "--undisturbed"]) == 0
    said = capsys.readouterr()
    lines = [json.loads(text) for text in said.out.splitlines()]
    assert len(lines) == 4
    for line in lines:
        assert line["ratio"] == pytest.approx(quotient(line), rel=1e-3)
    (tmp_path / "records").write_text(said.err)
    records = [json.loads(text) for text in said.err.splitlines() if text.startswith("{")]
    assert sum(record["seconds"] == 0 for record in records) == 2  # of both jobs
    assert max(record["largest worker"] for record in records) > 2**26
    assert killed_run.main([*size, "--draw", str(tmp_path / "records"), str(tmp_path / "record.svg")]) == 0
    assert (tmp_path / "record.svg").stat().st_size > 1000


def test_a_job_shorter_than_its_first_record_of_a_worker_has_no_line_of_records(tmp_path: Path) -> None:
    job = killed_run.Job([], tmp_path / "told", 60.0)
    start = {"seconds": 0.1, "largest worker": 0.0}
    for more, expected in (([], ["planned"]), ([{**start, "largest worker": 5.0}], ["tenth", "planned"])):
        job.records = [start, *more]
        lines = list(killed_run.memory_lines(job, 10, "memory", {"where": "nowhere", "n": 1}))
        assert [line.name.split()[-1] for line in lines] == expected
