"""Photographs, archives and arrays on the page, without an ingest, compared with the arrays that they were made of."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile

import dpca
from dpca import metrics
from dpca.explore import markup, originals, sources
from dpca.explore.explorer import Explorer
from dpca.explore.live import LiveFit
from dpca.explore.opening import open_explorer
from dpca.explore.originals import LargeSample
from dpca.explore.pictures import Contrast
from dpca.jobs.compressed.encode import encode_store
from dpca.jobs.scores.transform import transform_store
from dpca.storage import DataError, ReadOptions, ingest
from dpca.storage.readers import open_reader
from tests.conftest import smooth_images, write_images

N = 20
PHOTOS = smooth_images(N)
MOVIE = (smooth_images(N, (40, 36)).astype(np.uint16) * 100) + 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write_images(folder / "photos", N, PHOTOS.shape[1:])
    with zipfile.ZipFile(folder / "photos.zip", "w") as zipped:
        for path in sorted((folder / "photos").iterdir()):
            zipped.write(path, path.name)
    for mode in ("", "gz"):
        with tarfile.open(folder / f"photos.tar{mode and '.'}{mode}", f"w:{mode}") as archive:
            for path in sorted((folder / "photos").iterdir()):
                archive.add(path, path.name)
    tifffile.imwrite(folder / "movie.tif", MOVIE, photometric="minisblack")
    np.save(folder / "movie.npy", MOVIE)
    with gzip.open(folder / "movie.npy.gz", "wb") as file:
        np.save(file, MOVIE)
    np.save(folder / "float.npy", np.where(MOVIE > 6000, np.nan, MOVIE).astype(np.float32))
    with h5py.File(folder / "movie.h5", "w") as file:
        file.create_dataset("values", data=MOVIE, chunks=(4, 20, 36), compression="gzip")
    np.savez_compressed(folder / "movie.npz", movie=MOVIE, other=MOVIE[:, :3])
    (folder / "parts").mkdir()
    for start in (0, 7):
        np.save(folder / "parts" / f"{start}.npy", MOVIE[start : 7 if start == 0 else None])
    return folder


KINDS = {
    "folder": (["photos"], PHOTOS),
    "zip": (["photos.zip"], PHOTOS),
    "tar": (["photos.tar"], PHOTOS),
    "compressed tar": (["photos.tar.gz"], PHOTOS),
    "pattern": (["photos/*.png"], PHOTOS),
    "files": (["photos/photo-0003.png", "photos/photo-0001.png"], PHOTOS[[3, 1]]),
    "TIFF": (["movie.tif"], MOVIE),
    "npy": (["movie.npy"], MOVIE),
    "HDF5": (["movie.h5"], MOVIE),
    "compressed npz": (["movie.npz"], MOVIE),
    "parts": (["parts/0.npy", "parts/7.npy"], MOVIE),
}


def explored(folder: Path, names: list[str], **how: Any) -> Explorer:
    return open_explorer([str(folder / name) for name in names], **how).explorer


@pytest.mark.parametrize("kind", KINDS)
def test_every_source_is_shown_and_fitted(kind: str, folder: Path) -> None:
    names, values = KINDS[kind]
    explorer = explored(folder, names, key="movie" if "npz" in kind else None)
    assert explorer.originals is not None
    assert explorer.facts.sample_shape == values.shape[1:]
    for index in (len(values) - 1, 0, 1):
        np.testing.assert_array_equal(explorer.originals.read(index), values[index])
    if values.dtype == np.uint8:
        assert explorer.names[1] == open_reader([str(folder / name) for name in names]).names[1]
    else:
        assert explorer.names[1] == "1"
    view = explorer.view(1, 1)
    if values.dtype == np.uint8:
        np.testing.assert_array_equal(np.rint(view.original * 255), values[1])
    fit = LiveFit(explorer, 3)
    fit.start()
    fit.wait()
    assert not explorer.news
    if len(values) > 3:
        exact = dpca.PCA(3).fit(values)
        share = explorer.model.explained_variance_ratio_.sum()
        assert share == pytest.approx(exact.explained_variance_ratio_.sum(), rel=1e-3)
        assert explorer.view(2, 3).reconstruction.shape == view.original.shape


def test_a_missing_data_range_is_found_in_the_samples(folder: Path) -> None:
    explorer = explored(folder, ["movie.npy"])
    explorer.use(model := dpca.PCA(3).fit(MOVIE))
    low, high = int(MOVIE.min()), int(MOVIE.max())
    numbers, again = explorer.measure(4, 3), model.inverse_transform(model.transform(MOVIE[4:5]))
    assert numbers["psnr"] == pytest.approx(metrics.psnr(MOVIE[4:5], again, data_range=high - low)[0], rel=1e-4)
    assert numbers["ssim"] == pytest.approx(metrics.ssim(MOVIE[4:5], again, data_range=high - low)[0], abs=1e-5)
    assert f"{low} to {high}, of {N} samples" in markup.quality(numbers, explorer.found_range)
    gaps = np.where(MOVIE > 6000, np.nan, MOVIE)
    with_values = np.isfinite(gaps).any(axis=(1, 2)).sum()
    assert explored(folder, ["float.npy"]).found_range == ((np.nanmin(gaps), np.nanmax(gaps)), with_values)


def test_channels_have_their_names_and_colors_in_every_store(tmp_path: Path) -> None:
    x = np.stack([MOVIE, MOVIE[:, ::-1] // 9], 1)
    channels = {"Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]}}  # blue, green
    tifffile.imwrite(tmp_path / "s.ome.tif", x, metadata={"axes": "TCYX"} | channels)
    stack = ingest(tmp_path / "s.ome.tif", tmp_path / "stack.zarr")
    dpca.CellPCA(4, cell_shape=8).fit(stack).save(tmp_path / "cells.zarr")
    encode_store(stack, tmp_path / "cells.zarr", tmp_path / "small.zarr", psnr=34.0)
    transform_store(stack, tmp_path / "cells.zarr", tmp_path / "scores.zarr")
    for name in ("s.ome.tif", "stack.zarr", "small.zarr", "scores.zarr"):
        found = open_explorer(str(tmp_path / name), stack=str(tmp_path / "stack.zarr") if "s.zarr" in name else None)
        facts = found.explorer.facts
        assert (facts.channel_names, facts.channel_colors) == (("DAPI", "GFP"), ("#0000ff", "#00ff00"))
        assert not facts.is_gray
    explorer = explored(tmp_path, ["s.ome.tif"])
    explorer.use(dpca.PCA(2).fit(stack))
    low, high = np.percentile(x[3], (0.2, 99.8), axis=(1, 2))[..., None, None]
    red, green, blue = np.moveaxis(explorer.view(3, 2).original, -1, 0)
    np.testing.assert_allclose([blue, green], np.clip((x[3] - low) / (high - low), 0, 1), atol=0.05)
    assert not red.any()
    assert explorer.thumbnail(3).shape == explorer.view(3, 2).difference.shape == (40, 36, 3)
    shown, model = explorer.components(2), explorer.model
    assert [image.shape for image in (shown.mean, *shown.images)] == [(40, 36, 3)] * 3
    first = model.components_[0].reshape(40, 36, 2)
    assert abs(np.corrcoef(shown.images[0][..., 1].ravel(), first[..., 1].ravel())[0, 1]) > 0.99
    alone = explorer.view(3, 2, contrast=Contrast("full", channel=1)).original
    np.testing.assert_allclose(alone, (x[3, 1] - x[3, 1].min()) / np.ptp(x[3, 1]), atol=0.3)
    assert np.corrcoef(alone.ravel(), x[3, 1].ravel())[0, 1] > 0.999


def test_options_of_an_ingest_apply(folder: Path) -> None:
    resized = explored(folder, ["photos"], reading=ReadOptions(resize=(20, 18), color="gray"))
    stack = ingest(folder / "photos", folder / "resized.zarr", reading=ReadOptions(resize=(20, 18), color="gray"))
    np.testing.assert_array_equal(resized.originals.read(5), stack.samples[5])
    turned = explored(folder, ["movie.npy"], axes=("y", "sample", "x"), reading=ReadOptions(data_range=(0, 30000)))
    np.testing.assert_array_equal(turned.originals.read(5), MOVIE[:, 5])
    assert turned.facts.data_range == (0, 30000)


def test_photographs_are_shown_beside_their_compressed_store(folder: Path) -> None:
    stack = ingest(folder / "photos", folder / "stack.zarr")
    dpca.CellPCA(8, cell_shape=8).fit(stack).save(folder / "cells.zarr")
    encode_store(stack, folder / "cells.zarr", folder / "small.zarr", psnr=34.0)
    found = open_explorer(str(folder / "small.zarr"), stack=str(folder / "photos"))
    found.load()
    quality = dpca.open_compressed(folder / "small.zarr").quality["psnr"][3]
    assert found.explorer.measure(3, 99)["psnr"] == pytest.approx(quality, rel=1e-4)
    with pytest.raises(DataError, match="stack"):
        open_explorer(str(folder / "small.zarr"), stack=str(folder / "movie.npy"))


def test_a_model_reconstructs_photographs_as_those_of_a_stack(folder: Path) -> None:
    stack = ingest(folder / "photos", folder / "fitted.zarr")
    dpca.StreamingPCA(4, random_state=0).fit(stack).save(folder / "model.zarr")
    views = []
    for source in ("photos", "fitted.zarr"):
        found = open_explorer(str(folder / source), model=str(folder / "model.zarr"))
        found.load()
        views.append((found.explorer.view(6, 3).reconstruction, found.explorer.measure(6, 3)))
    np.testing.assert_array_equal(views[0][0], views[1][0])
    assert views[0][1] == views[1][1]


def test_a_broken_photograph_is_named_and_the_others_are_shown(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "photos", tmp_path / "photos")
    for name in ("photo-0000.png", "photo-0004.png"):
        (tmp_path / "photos" / name).write_bytes((tmp_path / "photos" / name).read_bytes()[:200])
    explorer = explored(tmp_path, ["photos"])
    with pytest.raises(DataError, match="photo-0004"):
        explorer.view(4, 1)
    np.testing.assert_array_equal(explorer.originals.read(3), PHOTOS[3])
    fit = LiveFit(explorer, 3)
    fit.start()
    fit.wait()
    assert "photo-000" in explorer.news
    shutil.rmtree(tmp_path / "photos")
    with pytest.raises(DataError, match="photo-0007"):
        explorer.view(7, 1)


def test_missing_values_of_an_array_are_shown_as_such(folder: Path) -> None:
    explorer = explored(folder, ["float.npy"])
    np.testing.assert_array_equal(np.isnan(explorer.view(0, 1).original), MOVIE[0] > 6000)
    with h5py.File(folder / "filled.h5", "w") as file:
        data = file.create_dataset("values", data=MOVIE)
        data.attrs["_FillValue"] = np.uint16(MOVIE[0, 0, 0])
    filled = explored(folder, ["filled.h5"])
    np.testing.assert_array_equal(np.isnan(filled.view(0, 1).original), MOVIE[0] == MOVIE[0, 0, 0])
    fit = LiveFit(filled, 3)
    fit.start()
    fit.wait()
    assert "missing" in filled.news


def test_large_samples_of_a_source_are_read_in_boxes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "WHOLE_SAMPLE", 1000)
    explorer = explored(folder, ["movie.npy"])
    sample = explorer.originals.read(3)
    assert isinstance(sample, LargeSample)
    np.testing.assert_array_equal(sample.whole(), MOVIE[3])
    np.testing.assert_array_equal(explorer.view(3, 1).original.shape, MOVIE.shape[1:])
    monkeypatch.setattr(originals, "MAX_SAMPLE", 1000)
    with pytest.raises(DataError, match="1,000"):
        explored(folder, ["photos"])


def test_a_compressed_archive_is_shown_before_all_of_it_is_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, gate = sources.decode, threading.Semaphore(2)

    def slowly(*given: Any) -> Any:
        assert gate.acquire(timeout=20)
        return decode(*given)

    monkeypatch.setattr(sources, "decode", slowly)
    explorer = explored(folder, ["photos.tar.gz"])
    np.testing.assert_array_equal(explorer.originals.read(1), PHOTOS[1])
    gate.release(N)
    np.testing.assert_array_equal(explorer.originals.read(N - 1), PHOTOS[N - 1])


def test_an_archive_that_is_cut_off_ends_the_wait_for_its_samples(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(folder / "photos.zip") as archive, tarfile.open(tmp_path / "a.tar.gz", "w:gz") as broken:
        for number, name in enumerate(sorted(archive.namelist())):
            payload = archive.read(name) if number != 6 else b"\x89PNG\r\n\x1a\n"
            entry = tarfile.TarInfo(name)
            entry.size = len(payload)
            broken.addfile(entry, io.BytesIO(payload))
    explorer = explored(tmp_path, ["a.tar.gz"])
    np.testing.assert_array_equal(explorer.originals.read(5), PHOTOS[5])
    with pytest.raises(DataError, match="photo-0006"):
        explorer.originals.read(6)


def test_a_url_is_shown(folder: Path) -> None:
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *given: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        explorer = open_explorer(f"http://127.0.0.1:{server.server_address[1]}/movie.npy").explorer
        np.testing.assert_array_equal(explorer.originals.read(4), MOVIE[4])
        server.shutdown()


def test_images_are_read_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first picture of many photographs does not wait for the others."""
    reader, opened = open_reader(str(folder / "photos")), []
    fetch = type(reader).fetch
    monkeypatch.setattr(type(reader), "fetch", lambda self, indices: (opened.extend(indices), fetch(self, indices))[1])
    explorer = explored(folder, ["photos"])
    explorer.view(0, 1)
    assert opened == [0]
