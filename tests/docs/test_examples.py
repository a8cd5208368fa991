"""The examples for clusters are valid for dpca, the cluster classes, Slurm and Kubernetes."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from dask.utils import parse_bytes

from dpca import __version__
from dpca.cli.program import _parser
from dpca.cli.running import MEANINGS
from dpca.engine.clusters.cluster_file import read_cluster_file
from dpca.storage import verify
from tests.conftest import write_images

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


CLUSTERS = sorted(path for path in EXAMPLES.glob("*.toml") if path.name != "job.toml")


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_files_are_valid(path: Path) -> None:
    file = read_cluster_file(path)
    assert 0 < file.minimum < file.maximum
    assert file.patience > 600


def test_commented_lines_are_valid_too(tmp_path: Path) -> None:
    path = tmp_path / "slurm.toml"
    path.write_text(re.sub(r"^# (?=\[tls\]|\S+ = )", "", (EXAMPLES / "slurm.toml").read_text(), flags=re.MULTILINE))
    file = read_cluster_file(path)
    assert file.tls is not None
    assert file.tls.key == str(tmp_path / "dask.key")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_their_commands_exist(path: Path) -> None:
    text = path.read_text().replace('"', "").replace(", ", " ")
    commands = re.findall(r"dpca ((?:compress|scores|job run) [^>\]\n]*)", text)
    assert commands or path.suffix in (".timer", ".yaml", ".c")
    for command in commands:
        options = _parser().parse_args(shlex.split(command))
        assert (EXAMPLES / Path(getattr(options, "cluster", None) or options.job).name).exists()


def test_jobs_of_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask_jobqueue")
    monkeypatch.chdir(tmp_path)  # the class creates a folder for logs
    file = read_cluster_file(EXAMPLES / "slurm.toml")
    job = file.cluster_class().job_cls("tcp://10.0.0.1:8786", name="worker", **file.arguments)
    script = job.job_script()
    header = re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)
    assert {"-p standard", "-A imaging", "-t 12:00:00", "--cpus-per-task=8", "--mem=30G", "--requeue"} <= set(header)
    assert "--nthreads 1 --memory-limit 3.73GiB --nworkers 8" in script
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", "job.sh"], check=True)


@pytest.mark.parametrize("name", ["slurm.sh", "slurm-job.sh"])
def test_the_batch_scripts_of_slurm(name: str) -> None:
    subprocess.run(["bash", "-n", EXAMPLES / name], check=True)
    head, _, body = (EXAMPLES / name).read_text().partition("\nset -eu\n")
    asked = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", head, re.MULTILINE))
    assert len(asked) == head.count("#SBATCH")
    assert asked["signal"] == "TERM@60"
    assert "#SBATCH" not in body  # sbatch ignores directives after the first command


def test_the_line_of_cron_does_the_example_job(tmp_path: Path, scheduler: str) -> None:
    (tmp_path / "incoming").mkdir()
    photos = sorted(write_images(tmp_path / "photos", 20, (36, 32, 3)).iterdir())
    with tarfile.open(tmp_path / "incoming" / "monday.tar", "w") as tar:
        for photo in photos:
            tar.add(photo, photo.name)
    job = (EXAMPLES / "job.toml").read_text()
    shown = dask.config.get("distributed.comm.tls")
    names = {"scheduler": scheduler, "tls-ca-file": shown["ca-file"]}
    names |= {f"tls-{part}": shown["client"][part] for part in ("cert", "key")}
    where = "\n".join(f'{name} = "{value}"' for name, value in names.items())
    job = re.sub(r"^workers = .*\nmemory = .*$", where, job, flags=re.MULTILINE)
    (tmp_path / "job.toml").write_text(job)
    (line,) = (line for line in (EXAMPLES / "job.cron").read_text().splitlines() if not line.startswith("#"))
    *times, command = line.split(maxsplit=5)
    assert all(re.fullmatch(r"\*|\d+", field) for field in times)
    assert "%" not in command  # an unescaped % ends the command
    command = command.replace("/opt/dpca/bin/dpca", f"{sys.executable} -m dpca").replace("/data", str(tmp_path))
    for made in ("done", "skipped"):
        subprocess.run(["/bin/sh", "-c", command], check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
        *_, event, end = map(json.loads, (tmp_path / "job.log").read_text().splitlines())
        assert (event["event"], end["event"], end["code"]) == (made, "end", 0)
    assert verify(tmp_path / "small" / "monday.zarr") == []


def test_the_example_job_does_the_example_data(tmp_path: Path) -> None:
    """Nothing is changed or added: this is what a user does first."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("small"))
    command = [sys.executable, "-m", "dpca", "job", "run", str(tmp_path / "examples" / "job.toml")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    *_, event, end = map(json.loads, done.stdout.splitlines())
    assert (event["event"], end["code"]) == ("done", 0)
    assert event["samples"] == 40
    assert event["bytes_compressed"] < event["bytes_given"]
    assert event["psnr"] >= 36
    assert verify(tmp_path / "examples" / "small" / "monday.zarr") == []
    assert "dpca_success 1.0" in (tmp_path / "examples" / "job.prom").read_text()


def test_units_of_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    for name in ("dpca-job.service", "dpca-job.timer"):
        unit = (EXAMPLES / name).read_text().replace("/opt/dpca/bin/dpca", sys.executable)
        (tmp_path / name).write_text(unit)
        command = [analyze, "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert str(tmp_path) not in done.stderr  # systemd-analyze warns about unknown keys there
    service = (EXAMPLES / "dpca-job.service").read_text()
    (busy,) = re.findall(r"^SuccessExitStatus=(\d+)$", service, re.MULTILINE)
    assert "another run" in MEANINGS[busy]


def test_the_cron_job_of_kubernetes() -> None:
    """No installable schema exists, so this checks the required fields and likely mistakes."""
    manifest = yaml.safe_load((EXAMPLES / "cronjob.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "CronJob")
    assert len(manifest["spec"]["schedule"].split()) == 5
    job = manifest["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # required by podFailurePolicy
    (container,) = pod["containers"]
    assert container["image"].endswith(f":{__version__}")
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert {str(code) for code in rule["onExitCodes"]["values"]} <= set(MEANINGS)
    job_file = tomllib.loads((EXAMPLES / "job.toml").read_text())
    assert job_file["workers"] * parse_bytes(job_file["memory"]) < parse_bytes(
        container["resources"]["limits"]["memory"] + "B"
    )


def test_pods_of_kubernetes() -> None:
    manifest = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    assert read_cluster_file(EXAMPLES / "kubernetes.toml").arguments["custom_cluster_spec"] == "kubernetes.yaml"
    scheduler, worker = (manifest["spec"][role]["spec"]["containers"][0] for role in ("scheduler", "worker"))
    assert scheduler["image"] == worker["image"]
    assert worker["image"].endswith(f":{__version__}")
    limit = worker["args"][worker["args"].index("--memory-limit") + 1]
    assert parse_bytes(limit) < parse_bytes(worker["resources"]["limits"]["memory"] + "B")
    assert worker["args"][worker["args"].index("--nthreads") + 1] == worker["resources"]["requests"]["cpu"]
    assert {port["targetPort"] for port in manifest["spec"]["scheduler"]["service"]["ports"]} == {
        port["name"] for port in scheduler["ports"]
    }


def test_pods_match_the_operator() -> None:
    """The operator's resource definition accepts the pods, and knows every field."""
    if (found := importlib.util.find_spec("dask_kubernetes")) is None or found.origin is None:
        pytest.skip("dask_kubernetes is not installed: it brings 30 packages")
    file = read_cluster_file(EXAMPLES / "kubernetes.toml")
    inspect.signature(file.cluster_class()).bind(**file.arguments)
    (definition,) = Path(found.origin).parent.glob("operator/deployment/helm/*/crds/daskcluster.yaml")
    (version,) = yaml.safe_load(definition.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    manifest = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(manifest, schema)
    assert not list(_unknown(manifest["spec"], schema["properties"]["spec"], "spec"))


def _unknown(value: Any, schema: dict[str, Any], where: str) -> Any:
    """Yield the fields that are missing in the schema."""
    if isinstance(value, list):
        for item in value:
            yield from _unknown(item, schema.get("items", {}), where)
    elif isinstance(value, dict) and "properties" in schema:
        for key, inner in value.items():
            if key not in schema["properties"]:
                yield f"{where}.{key}"
            else:
                yield from _unknown(inner, schema["properties"][key], f"{where}.{key}")
