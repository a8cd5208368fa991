"""The container file and the compose file: their steps run in a clean environment, with an S3 server for the bucket."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpca import __version__, open_compressed
from dpca.storage import use_storage_options, verify
from tests.conftest import write_images

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "containers"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
LINES = [line for line in (FOLDER / "Containerfile").read_text().splitlines() if line and line[0] != "#"]


def test_the_files_agree_with_the_project() -> None:
    services = COMPOSE["services"]
    images = {service["image"] for name, service in services.items() if name != "bucket"}
    assert images == {f"dpca:{__version__}"}
    assert f"-t dpca:{__version__} " in (FOLDER / "Containerfile").read_text()
    copied = {name for line in LINES if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert {"dpca", "storage", "pipelines", "docs/constraints.txt"} <= copied
    assert all((ROOT / name).exists() for name in copied)
    assert not [service for service in services.values() if "ports" in service]
    assert services["bucket"]["environment"]["MINIO_ROOT_USER"] == COMPOSE["x-dpca"]["environment"]["AWS_ACCESS_KEY_ID"]


def test_all_containers_that_read_the_photographs_have_them() -> None:
    services = COMPOSE["services"]
    source = services["job"]["command"][2]
    for name in ("job", "worker"):
        mounts = [volume.split(":") for volume in services[name].get("volumes", ())]
        assert ["./photos", source, "ro"] in mounts, name


def test_constraints_are_exact_and_name_no_host() -> None:
    lines = [line for line in (ROOT / "docs" / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines)
    assert len(lines) > 30


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the steps of the container file; return the variables with which its commands run."""
    place = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    kept = ("HOME", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CONFIG_FILE", "SSL_CERT_FILE")
    found = {name: os.environ[name] for name in kept if name in os.environ}
    found |= {"PATH": f"{place / 'venv' / 'bin'}:/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "PIP_NO_COMPILE": "1"}
    (folder := place / "opt").mkdir()
    for line in LINES:
        step, _, rest = line.partition(" ")
        if step == "COPY":
            *names, target = rest.split()
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, folder / target, symlinks=True)
                else:
                    shutil.copy(ROOT / name, folder / target)
        elif step == "RUN" and not rest.startswith("useradd"):  # which changes this machine
            rest = rest.replace(
                " --no-cache-dir", ""
            )  # an image need not keep packages that tests fetch again and again
            done = subprocess.run(["/bin/sh", "-c", rest], cwd=folder, env=found, capture_output=True, text=True)
            if "No matching distribution" in done.stderr or "onnection" in done.stderr:
                pytest.skip("pip reaches no index")
            assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)  # what runs is what is installed
    return found


@contextmanager
def service(command: list[str], env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as said, subprocess.Popen(command, env=env, stdout=said, stderr=said) as process:
        try:
            yield
        finally:
            process.terminate()


def test_the_services_do_the_job(environment: dict[str, str], tmp_path: Path, s3: str) -> None:
    photos = write_images(tmp_path / "photos", 30, (40, 36, 3))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {
        "tcp://scheduler:8786": f"tcp://127.0.0.1:{port}",
        "8786": str(port),
        "http://bucket:9000": s3,
        "/data/photos": str(photos),
        "/tmp/worker": str(tmp_path / "worker"),
    }
    keys = {name: here.get(value, value) for name, value in COMPOSE["x-dpca"]["environment"].items()}
    env, services = environment | keys, COMPOSE["services"]

    def command(name: str) -> list[str]:
        program, *arguments = (here.get(word, word) for word in services[name]["command"])
        found = shutil.which(program, path=env["PATH"])
        assert found is not None, program
        assert services[name].get("environment", keys).keys() <= {*keys}
        return [found, *arguments]

    with ExitStack() as stack:
        stack.enter_context(service(command("scheduler"), env, tmp_path / "scheduler.log"))
        time.sleep(2)
        for number in range(services["worker"]["deploy"]["replicas"]):
            stack.enter_context(service(command("worker"), env, tmp_path / f"worker-{number}.log"))
        for name in ("make-bucket", "job"):
            done = subprocess.run(command(name), env=env, capture_output=True, text=True, cwd=tmp_path, timeout=240)
            assert done.returncode == 0, f"{shlex.join(command(name))}: {done.stderr}"
    assert "2 workers" in done.stdout
    options = {"key": keys["AWS_ACCESS_KEY_ID"], "secret": keys["AWS_SECRET_ACCESS_KEY"], "endpoint_url": s3}
    use_storage_options(options | {"client_kwargs": {"region_name": "us-east-1"}}, "s3://imaging")
    assert open_compressed("s3://imaging/small.zarr").shape == (30, 40, 36, 3)
    assert verify("s3://imaging/small.zarr") == []
