"""Metrics of jobs in a file, as Prometheus's own parser reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpca.cli import main
from dpca.report.monitor import METRICS, MonitorFile
from dpca.storage import StoreError
from dpca.storage.run import Run

parser = pytest.importorskip("prometheus_client.parser")
pytestmark = pytest.mark.usefixtures("small_pictures")


def read(path: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return all samples, and check that every metric is described once."""
    families = list(parser.text_string_to_metric_families(path.read_text()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    assert {family.name: family.documentation for family in families} == {name: METRICS[name] for name in names}
    assert {family.type for family in families} == {"gauge"}
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def plain(path: Path) -> dict[str, float]:
    return {name: value for (name, labels), value in read(path).items() if not labels}


def test_a_job_keeps_its_metrics(image_folder: Callable[..., Path], tmp_path: Path, scheduler: str) -> None:
    output, path = str(tmp_path / "small.zarr"), tmp_path / "prom" / "dpca.prom"
    argv = ["compress", str(image_folder(30)), output, "--cell", "8", "--components", "9", "--scheduler", scheduler]
    began = time.time()
    assert main([*argv, "--quality", "psnr=28", "--metrics", str(path)]) == 0
    report = json.loads((tmp_path / "small.report" / "report.json").read_text())
    found, alone = read(path), plain(path)
    assert (alone["dpca_running"], alone["dpca_success"]) == (0, 1)
    assert began <= alone["dpca_start_time_seconds"] <= alone["dpca_end_time_seconds"] <= time.time()
    assert alone["dpca_last_success_time_seconds"] == alone["dpca_end_time_seconds"]
    of = (("output", output),)
    assert found["dpca_output_samples", of] == 30
    assert found["dpca_output_psnr_decibels", of] == report["psnr"]
    for kind in ("given", "decoded", "compressed"):
        assert found["dpca_output_bytes", (("kind", kind), *of)] == report[f"bytes_{kind}"]
    for stage, cost in report["stages"].items():
        assert found["dpca_stage_seconds", (*of, ("stage", stage))] == cost["seconds"]
    for stage in ("ingest", "encode"):
        at = (*of, ("stage", stage))
        assert found["dpca_stage_done_units", at] == found["dpca_stage_units", at] == 30
    # A finished job keeps them, too, and so does one that is refused, with the time of the last success.
    assert main([*argv, "--quality", "psnr=28", "--metrics", str(path)]) == 0
    assert read(path)["dpca_output_samples", of] == 30
    before = plain(path)["dpca_last_success_time_seconds"]
    assert main([*argv, "--quality", "psnr=29", "--metrics", str(path)]) == 4
    assert plain(path)["dpca_success"] == 0
    assert plain(path)["dpca_last_success_time_seconds"] == before


def test_a_job_file_keeps_those_of_all_outputs(
    image_folder: Callable[..., Path], tmp_path: Path, scheduler: str
) -> None:
    image_folder(20, name="a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "broken.png").write_bytes(b"\x89PNG")
    job = tmp_path / "job.toml"
    job.write_text(
        f'inputs = ["a", "b"]\noutput = "{{name}}.zarr"\ntarget = {{psnr = 28}}\ncell = 8\ncomponents = 9\n'
        f'metrics = "job.prom"\nscheduler = "{scheduler}"\n'
    )
    code = main(["job", "run", str(job)])
    assert code != 0
    found = read(tmp_path / "job.prom")
    assert found["dpca_outputs", (("state", "done"),)] == 1
    assert found["dpca_outputs", (("state", "failed"),)] == 1
    assert found["dpca_output_samples", (("output", str(tmp_path / "a.zarr")),)] == 20
    assert plain(tmp_path / "job.prom")["dpca_success"] == 0
    assert "dpca_last_success_time_seconds" not in plain(tmp_path / "job.prom")


def test_it_is_complete_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "dpca.prom", list[Any]()
    with MonitorFile(path) as metrics:
        assert plain(path)["dpca_running"] == 1
        stage = metrics.watched(Run().progress, "o")("fit", 7, "samples")
        monkeypatch.setattr("dpca.report.monitor._PAUSE", 0.0)
        for _ in range(7):
            stage.advance(1)
            seen.append(read(path)["dpca_stage_done_units", (("output", "o"), ("stage", "fit"))])
        stage.close()
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dpca.prom"]
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_any_path_is_a_label(tmp_path: Path) -> None:
    name = 'a"b\\c\nd{}=,\udc80é'
    with MonitorFile(tmp_path / "m.prom") as metrics:
        metrics.set_report({"samples": 3, "psnr": None}, name)
    assert read(tmp_path / "m.prom") == {
        **{key: value for key, value in read(tmp_path / "m.prom").items() if not key[1]},
        ("dpca_output_samples", (("output", name.replace("\udc80", "?")),)): 3.0,
    }


def test_other_files_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "node.prom"
    path.write_text("# HELP node_boot_time_seconds mine\n")
    with pytest.raises(StoreError, match="node"):
        MonitorFile(path)
    assert "mine" in path.read_text()
    with pytest.raises(StoreError, match="overlap|input"):
        MonitorFile(tmp_path / "m.prom", tmp_path / "m.prom")
    assert MonitorFile(None).__enter__().failed is False
