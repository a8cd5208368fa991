"""Whole jobs in a bucket: the bytes of those on disk, also when they are killed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zarr

import dpca
from dpca import PCA
from dpca.cli import main
from dpca.storage import use_storage_options
from dpca.storage.remote.objects import ObjectPath, place_of
from tests.conftest import smooth_images, write_images
from tests.helpers.forked import Programs
from tests.helpers.s3_server import KEYS, FaultyProxy, content, options_at, upload

pytestmark = pytest.mark.usefixtures("small_pictures")

FIT = ("--cell", "8", "--components", "2")


@pytest.fixture
def proxy(s3: str, tmp_path: Path):
    """A proxy, through which this process reaches ``s3://faulty`` and programs do with ``options(tmp_path)``."""
    with FaultyProxy(s3, share=0.0) as proxy:
        use_storage_options(options_at(proxy.address), "s3://faulty")
        (tmp_path / "options.json").write_text(json.dumps(options_at(proxy.address)))
        yield proxy


def options(folder: Path, scheduler: str) -> list[str]:
    return ["--storage-option", f"@{folder / 'options.json'}", "--scheduler", scheduler]


class Made(NamedTuple):
    """Images, and the store that was made of them on the disk."""

    photos: Path
    output: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, scheduler: str, small_pictures: None) -> Made:
    folder = tmp_path_factory.mktemp("made")
    photos, output = write_images(folder / "photos", 14, (24, 16, 3)), folder / "out.zarr"
    assert main(["scores", str(photos), str(output), *FIT, "--scheduler", scheduler]) == 0
    return Made(photos, output)


def numbers(output: str | Path) -> dict:
    """The report of a job without what time and memory it took."""
    place = place_of(output)
    report = json.loads((place.with_name(f"{place.stem}.report") / "report.json").read_bytes())
    return {key: value for key, value in report.items() if key != "stages"}


def test_a_job_that_is_killed_makes_in_a_bucket_what_it_makes_on_disk(
    made, tmp_path, proxy, scheduler, programs: Programs, capfd
):
    upload(made.photos, "s3://faulty/photos")
    output, where = "s3://faulty/made/out.zarr", options(tmp_path, scheduler)
    command = ["scores", "s3://faulty/photos", output, *FIT, *where]
    proxy.share = 0.03
    # in requests, of which it takes about 500
    for moment in (80, 200):
        run(programs, command, proxy, moment)
    assert main(command) == 0
    proxy.share = 0.0
    assert content(output) == content(made.output)
    assert numbers(output) == numbers(made.output)
    assert set(ObjectPath("s3://faulty/made").entries()) == {("out.report", True), ("out.zarr", True)}
    assert main(["verify", "s3://faulty/made/out.report", *where]) == 0
    assert main(["info", output, *where[:2]]) == 0
    assert "bytes_on_disk" in capfd.readouterr().out
    assert main(command) == 0
    told = capfd.readouterr()
    assert "nothing to do" in told.out
    secrets = [value.encode() for value in KEYS.values()]
    assert not any(secret in text for text in content("s3://faulty/made").values() for secret in secrets)
    assert not any(value in told.out + told.err for value in KEYS.values())


def run(programs: Programs, command: Sequence[str], proxy: FaultyProxy, requests: int) -> None:
    """Run a command, and kill it after so many requests."""
    program = programs.start([sys.executable, "-m", "dpca", *command])
    last = sum(proxy.met.values()) + requests
    while program.poll() is None and sum(proxy.met.values()) < last:
        time.sleep(0.005)
    program.kill()
    _, errors = program.communicate()
    assert "Traceback" not in errors, errors
    assert program.returncode == -9, errors


def test_models_scores_and_reconstructions_in_a_bucket(tmp_path, s3, bucket, scheduler):
    x = smooth_images(30, (12, 10))
    np.save(tmp_path / "a.npy", x)
    stores = {}
    for root in (str(tmp_path), bucket):
        names = ("stack", "model", "scores", "again", "small")
        stack, model, scores, again, small = (f"{root}/{name}.zarr" for name in names)
        where = ["--scheduler", scheduler]
        assert main(["ingest", str(tmp_path / "a.npy"), stack, *where]) == 0
        assert main(["fit", stack, model, "--cell", "4", "--components", "3", *where]) == 0
        assert main(["transform", model, stack, scores, *where]) == 0
        assert main(["reconstruct", model, scores, again, *where]) == 0
        assert main(["encode", model, stack, small, "--max-error", "0.5", *where]) == 0
        assert main(["verify", small, *where]) == 0
        assert np.array_equal(dpca.open_compressed(small)[...], x)
        stores[root] = {name: content(f"{root}/{name}.zarr") for name in names}
    assert stores[bucket] == stores[str(tmp_path)]
    opened = dpca.open_scores(f"{bucket}/scores.zarr", model=f"{bucket}/model.zarr")
    assert np.array_equal(
        opened.stack()[4:7].compute(),
        dpca.open_scores(tmp_path / "scores.zarr", model=tmp_path / "model.zarr").stack()[4:7].compute(),
    )
    fitted = PCA(2).fit(f"{bucket}/stack.zarr")
    fitted.save(f"{bucket}/pca.zarr", storage_options=options_at(s3))
    assert np.array_equal(PCA.load(f"{bucket}/pca.zarr").components_, PCA(2).fit(tmp_path / "stack.zarr").components_)


def test_exit_codes_are_those_of_disks(tmp_path, proxy, bucket, scheduler, capsys):
    where = options(tmp_path, scheduler)
    assert main(["scores", "s3://faulty/none", "s3://faulty/a.zarr", *FIT, *where]) == 3
    assert "there is nothing at 's3://faulty/none'" in capsys.readouterr().err
    proxy.share, proxy._faults = 1.0, ("403",)
    assert main(["info", "s3://faulty/a.zarr", *where[:2]]) == 4
    told = capsys.readouterr().err
    assert "credentials" in told
    assert len(told.splitlines()) == 1
    with pytest.raises(SystemExit) as wrong:
        main(["info", "s3://faulty/a.zarr", "--storage-option", "nothing"])
    assert wrong.value.code == 2


def test_maps_of_weights_in_a_bucket(tmp_path, proxy, scheduler):
    """A map is read with the options of the command, as a file and as a Zarr array, and named in the request."""
    x = smooth_images(20, (24, 16))
    weights = np.linspace(0, 2, 24 * 16).reshape(24, 16)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps" / "w.npy", weights)
    zarr.create_array(str(tmp_path / "maps" / "w.zarr"), data=weights[None], chunks=(1, 12, 16))
    upload(tmp_path / "maps", "s3://faulty/maps")
    for name in ("w.npy", "w.zarr"):
        command = ["scores", str(tmp_path / "x.npy"), str(tmp_path / "out.zarr"), *FIT, "--overwrite"]
        command += ["--weights", f"s3://faulty/maps/{name}", *options(tmp_path, scheduler)]
        assert main(command) == 0
        np.testing.assert_array_equal(dpca.load(tmp_path / "out.zarr" / "model").weights_, weights)
    assert main([*command[:-4], "--weights", "s3://faulty/maps/none.npy", *options(tmp_path, scheduler)]) == 3
