"""Codecs are allowed by name; codecs that execute code are rejected."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dpca
from dpca import CellPCA
from dpca.storage import DataError, StoreError, ingest, open_stack, verify
from dpca.storage.readers import open_reader
from dpca.storage.run import Run
from tests.conftest import smooth_images


class Touch:
    """The code that a hostile store would execute."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def pickled_store(folder: Path, ran: Path, *, consolidated: bool) -> Path:
    """Write a Zarr v2 array whose only chunk is a pickle that makes a folder."""
    path = folder / "hostile.zarr"
    (path / "images").mkdir(parents=True)
    chunk = pickle.dumps([Touch(ran)])
    metadata = {
        **{"zarr_format": 2, "shape": [4, 3], "chunks": [4, 3], "dtype": "|O", "fill_value": None, "order": "C"},
        **{"compressor": None, "filters": [{"id": "pickle", "protocol": 5}]},
    }
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / "images" / ".zarray").write_text(json.dumps(metadata))
    (path / "images" / "0.0").write_bytes(chunk)
    if consolidated:
        every = {".zgroup": {"zarr_format": 2}, "images/.zarray": metadata, "images/.zattrs": {}}
        (path / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": every}))
    return path


@pytest.mark.parametrize("consolidated", [False, True])
def test_a_codec_that_runs_what_it_reads_is_refused(consolidated: bool, tmp_path: Path) -> None:
    path, ran = pickled_store(tmp_path, tmp_path / "ran", consolidated=consolidated), tmp_path / "ran"
    x = smooth_images(6, (4, 3))
    reading: list[Callable[[Path], Any]] = [
        lambda where: open_stack(where).samples[...],
        lambda where: open_reader(where).fetch([0]),
        lambda where: ingest(where, tmp_path / "out.zarr", run=Run(threads=1)),
        lambda where: CellPCA(1, cell_shape=2).fit(where),
        lambda where: CellPCA(1, cell_shape=2).fit(x).transform(where),
        lambda where: verify(where),
    ]
    for where in (path, path / "images"):
        for attempt in reading:
            try:
                told = attempt(where)
            except (StoreError, DataError) as error:
                told = [str(error)]
            assert "'pickle'" in str(told)
        for no_model in (CellPCA.load, dpca.open_scores):
            with pytest.raises(StoreError):
                no_model(where)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["pickle", "numcodecs.pickle", "somebody.elses", "imagecodecs_jpeg2k"])
def test_codecs_of_the_third_version_are_read_by_name(name: str, tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a.zarr"), data=np.zeros((4, 4), np.uint8), chunks=(2, 2), shards=(4, 4))
    metadata = json.loads((tmp_path / "a.zarr" / "zarr.json").read_text())
    for change in (
        lambda codecs: codecs.append({"name": name}),
        lambda codecs: codecs[0]["configuration"]["codecs"].append({"name": name, "configuration": {}}),
        lambda codecs: codecs[0]["configuration"]["index_codecs"].append(name),
    ):
        changed = json.loads(json.dumps(metadata))
        change(changed["codecs"])
        (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(changed))
        with pytest.raises(StoreError, match=f"'{name}'"):
            open_stack(tmp_path / "a.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shards", [None, (4, 6)])
def test_what_zarr_and_numcodecs_write_by_default_is_read(zarr_format: Any, shards: Any, tmp_path: Path) -> None:
    if zarr_format == 2 and shards:
        pytest.skip("version 2 knows no shards")
    x = np.arange(48, dtype=np.float32).reshape(8, 6)
    zarr.create_array(str(tmp_path / "a.zarr"), data=x, chunks=(2, 3), shards=shards, zarr_format=zarr_format)
    np.testing.assert_array_equal(open_stack(tmp_path / "a.zarr").samples[...], x)
    # A text in the attributes is not a codec.
    zarr.open(tmp_path / "a.zarr", mode="a").attrs["codecs"] = [{"name": base64.b64encode(b"x").decode()}]
    np.testing.assert_array_equal(open_stack(tmp_path / "a.zarr").samples[...], x)
