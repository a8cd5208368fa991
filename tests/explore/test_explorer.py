"""Views of samples and models, compared with the stores and models themselves."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import dpca
from dpca.explore import markup, originals
from dpca.explore.explorer import Explorer
from dpca.explore.live import LiveFit, LiveModelStore, describe_progress
from dpca.explore.opening import open_explorer
from dpca.explore.originals import SampleNames
from dpca.jobs import CompressionSettings, compress, encode_store
from dpca.jobs.models.fit import fit_store
from dpca.metrics import psnr, ssim
from dpca.plots.panels import NO_DATA, levels
from dpca.representation.linear import LinearRepresentation
from dpca.storage import StoreError, open_stack
from dpca.storage.errors import DataError
from tests.explore.conftest import HOSTILE, SHAPE, K, N


def opened(*paths: Path, **how: str) -> Explorer:
    found = open_explorer(*map(str, paths), **{name: str(path) for name, path in how.items()})
    if found.load is not None:
        found.load()
    return found.explorer


def test_a_reconstruction_at_k_is_the_models_own_with_its_quality(stores: Path) -> None:
    explorer = opened(stores / "stack.zarr", model=stores / "model.zarr")
    model, stack = dpca.StreamingPCA.load(stores / "model.zarr"), open_stack(stores / "stack.zarr")
    samples = stack.samples[...]
    for index, k in ((0, 1), (17, 4), (59, K), (59, 99)):
        view = explorer.view(index, k)
        level = min(k, K)
        again = model.inverse_transform(model.transform(samples[index : index + 1])[:, :level], level)
        again = np.clip(np.rint(again), 0, 255).astype(np.uint8)
        assert view.k == level
        np.testing.assert_array_equal(np.rint(view.reconstruction * 255), again[0])
        np.testing.assert_array_equal(np.rint(view.original * 255), samples[index])
        numbers = explorer.measure(index, k)
        assert numbers["psnr"] == pytest.approx(psnr(samples[index : index + 1], again, data_range=255)[0], rel=1e-5)
        assert numbers["ssim"] == pytest.approx(ssim(samples[index : index + 1], again, data_range=255)[0], abs=1e-5)
        assert view.size == f"{level:,} number{'s' * (level > 1)}, {4 * level:,} bytes"
    assert explorer.n_components == K
    shown = explorer.components(4)
    assert len(shown.images) == 4
    assert shown.explained[-1] == pytest.approx(model.explained_variance_ratio_.sum())


@pytest.mark.parametrize("whole", [True, False])
def test_the_north_is_at_the_top_of_maps_of_samples_scores_and_components(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """Latitudes ascend, as in most files: the first row is the south. Here the north is the brightest."""
    if not whole:
        monkeypatch.setattr(originals, "WHOLE_SAMPLE", 100)
    lat = np.linspace(-85, 85, 18)
    waves = np.random.default_rng(0).normal(size=(12, 1, 1)) * np.exp(lat / 30)[:, None]
    field = np.arange(18.0)[:, None] + 0.01 * waves + np.zeros((12, 18, 24))
    coordinates = {"lat": ("lat", lat, {"units": "degrees_north"}), "time": np.arange(12.0)}
    maps = xarray.DataArray(field.astype("f4"), coordinates, ("time", "lat", "lon"), name="t")
    path, scored, small, modes = (tmp_path / f"{name}.zarr" for name in ("maps", "scores", "small", "modes"))
    stack = dpca.storage.ingest(maps, path)
    model = dpca.CellPCA(1, cell_shape=6, random_state=0)
    compress(stack, scored, CompressionSettings(model))
    fit_store(stack, tmp_path / "model.zarr", model)
    encode_store(stack, tmp_path / "model.zarr", small, max_error=0.1)
    dpca.EOF(1).fit(maps).save(modes)
    for explorer in (
        opened(path),
        opened(scored),
        opened(small),
        opened(scored, stack=path),
        opened(small, stack=path),
    ):
        view = explorer.view(2, 1)
        shown = [picture for picture in (view.original, view.reconstruction) if picture is not None]
        mean = None if (components := explorer.components(1)) is None else components.mean
        for picture in (*shown, explorer.thumbnail(2), *([] if mean is None else [mean])):
            assert picture.shape[0] == 18
            assert picture[0].min() > 0.9
            assert picture[-1].max() < 0.1
    volumes = maps.expand_dims(lev=3, axis=1)
    dpca.storage.ingest(volumes.transpose("time", "lev", "lat", "lon"), tmp_path / "volumes.zarr")
    picture = opened(tmp_path / "volumes.zarr").view(2, 1, 1).original
    assert (picture.shape[0], picture[0].min() > 0.9, picture[-1].max() < 0.1) == (18, True, True)
    for explorer in (opened(modes), opened(modes, stack=path)):
        (image,) = explorer.components(1).images  # gray where a component is zero, as in the south
        strength = np.abs(image - image[-1, 0]).max(axis=(1, 2))
        assert strength[0] > 10 * strength[-2]


@pytest.mark.parametrize("kept", ["scores.zarr", "small.zarr"])
def test_what_was_kept_of_samples_is_shown_and_sorted_without_them(stores: Path, kept: str) -> None:
    """Scores know their model when it is given; a compressed store holds all."""
    how = {"model": stores / "model.zarr"} if kept == "scores.zarr" else {}
    alone, beside = opened(stores / kept, **how), opened(stores / kept, stack=stores / "stack.zarr", **how)
    view, both = alone.view(7, 99), beside.view(7, 99)
    assert view.original is None
    np.testing.assert_array_equal(view.reconstruction, both.reconstruction)
    assert beside.measure(7, 99)["psnr"] == pytest.approx(view.stored["psnr"], rel=1e-4)
    assert alone.view(7, 1).k == 1
    assert np.abs(alone.view(7, 1).reconstruction - view.reconstruction).max() > 0
    group = zarr.open_group(stores / kept, mode="r")
    assert set(alone.orders) == {"stack", "ssim", "psnr", "mse", "distance"}
    for name, sign in (("ssim", 1), ("psnr", 1), ("mse", -1)):
        np.testing.assert_array_equal(alone.order(name), np.argsort(sign * group[name][...], kind="stable"))
    if kept == "scores.zarr":
        model = dpca.StreamingPCA.load(stores / "model.zarr")
        far = (group["scores"][...].astype(float) ** 2 / model.explained_variance_).sum(axis=1)
        np.testing.assert_array_equal(alone.order("distance"), np.argsort(-far, kind="stable"))
    assert alone.thumbnail(7).shape == SHAPE
    shown, cells = alone.components(3), dpca.CellPCA.load(stores / "cells.zarr")
    assert [image.shape for image in shown.images] == [SHAPE] * 3
    if kept == "small.zarr":  # its components are those of the model, as few as are worth their bytes
        found, first = alone._decoder.pictured(1).vectors[0], cells.component_maps(1)[0]
        for y, x in ((0, 0), (16, 8)):
            cell = np.s_[y : y + 8, x : x + 8]
            assert abs(np.corrcoef(found[cell].ravel(), first[cell].ravel())[0, 1]) > 0.99
        np.testing.assert_allclose(alone._decoder.pictured(1).mean, cells.mean_, atol=2.1)  # quantized


def test_where_no_quality_is_stored_some_samples_are_measured(stores: Path) -> None:
    explorer = opened(stores / "stack.zarr", model=stores / "model.zarr")
    assert set(explorer.orders) == {"stack", "measured"}
    order = explorer.order("measured")
    lost = [explorer.measure(int(i), K)["mse"] for i in order]
    assert len(order) == N
    assert lost == sorted(lost, reverse=True)


def test_a_model_alone_and_a_cell_model_have_eigenimages(stores: Path) -> None:
    alone = opened(stores / "cells.zarr")
    shown = alone.components(3)
    assert alone.facts is None
    assert [image.shape for image in shown.images] == [SHAPE] * 3
    assert "CellPCA" in shown.description
    both = opened(stores / "cells.zarr", stack=stores / "stack.zarr")
    assert both.measure(0, 8)["psnr"] > both.measure(0, 1)["psnr"]


def test_names_are_found_in_any_case_and_numbers_name_samples(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "_NAMES", 8)  # several blocks
    names = opened(stores / "stack.zarr").names
    everything = open_stack(stores / "stack.zarr").names.tolist()
    assert [names[i] for i in (0, 3, 59, 1)] == [everything[i] for i in (0, 3, 59, 1)]
    assert names.find("PORTRAIT-02") == ([i for i, name in enumerate(everything) if "portrait-02" in name], N)
    assert names.find("portrait", first=30, most=5) == (everything_of(everything, "portrait", 30)[:5], 35)
    assert names.find("portrait", seconds=-1)[1] == 8  # at least one block is searched
    assert names.find("portrait", wanted=lambda: False)[1] == 8
    assert names.find("nobody") == ([], N)
    virtual = SampleNames(None, 3_033_042)
    assert virtual[3_033_041] == "3033041"
    assert virtual.find("#3,033,041") == ([3_033_041], 3_033_042)
    assert virtual.find("3033042")[0] == virtual.find("-1")[0] == virtual.find("x")[0] == []


def everything_of(names: list[str], text: str, first: int) -> list[int]:
    return [i for i, name in enumerate(names) if text in name and i >= first]


@pytest.mark.parametrize(
    ("shape", "axes", "panel"),
    [
        ((16, 18, 1), ("y", "x", "channel"), (16, 18)),
        ((16, 18, 4), ("y", "x", "channel"), (16, 18, 3)),
        ((5, 16, 18), ("z", "y", "x"), (16, 18)),
        ((2, 5, 16, 18, 3), ("t", "z", "y", "x", "channel"), (16, 18, 3)),
        ((40,), ("feature",), (40,)),
        ((1,), ("feature",), (1,)),
        ((1100, 2100), ("y", "x"), (367, 700)),
    ],
)
def test_samples_of_any_shape(
    tmp_path: Path, shape: tuple[int, ...], axes: tuple[str, ...], panel: tuple[int, ...]
) -> None:
    """Two samples of floats without a stated range: values are scaled to their own limits."""
    values = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    zarr.create_array(tmp_path / "a.zarr", data=values, dimension_names=("sample", *axes))
    explorer = opened(tmp_path / "a.zarr")
    explorer.use(dpca.PCA(1).fit(values))
    view = explorer.view(1, 1)
    assert view.original.shape == view.reconstruction.shape == panel
    assert 0 <= view.original.min() < 0.01 or view.original.size == 1
    assert explorer.measure(1, 1)["psnr"] > 100 or values.size == 2
    assert explorer.components(5).images[0].shape[: len(panel[:2])]
    assert markup.triplet(view).count("<figure>") == 3
    n_planes = int(np.prod(shape[: -2 - (axes[-1] == "channel")])) if len(shape) > 2 else 1
    assert explorer.facts.n_planes == n_planes
    if shape == (5, 16, 18):
        low, high = values[1].min(), values[1].max()
        last, most = explorer.view(1, 1, 4).original, explorer.view(1, 1, None).original
        assert np.corrcoef(last.ravel(), values[1, 4].ravel())[0, 1] > 0.999  # the ends are cut
        assert np.corrcoef(most.ravel(), values[1].max(axis=0).ravel())[0, 1] > 0.999
        np.testing.assert_array_equal(explorer.view(1, 1, 99).original, last)  # of a stack with more slices
        assert low < high


def test_stores_that_cannot_be_shown(stores: Path, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "empty.zarr", shape=(0, 8, 8), dtype="u1")
    np.save(tmp_path / "a.npy", np.zeros(3))
    other = dpca.PCA(2).fit(np.random.default_rng(0).normal(size=(5, 8, 8)))
    other.save(tmp_path / "other.zarr")
    for says, paths, how in (
        ("at least one sample", [tmp_path / "empty.zarr"], {}),
        ("nowhere", [tmp_path / "nowhere"], {}),
        ("nowhere", [tmp_path / "nowhere"], {"stack": stores / "stack.zarr"}),
        ("nowhere", [stores / "small.zarr"], {"stack": tmp_path / "nowhere"}),
        ("axis", [tmp_path / "a.npy"], {}),
        ("already a stack", [stores / "stack.zarr"], {"stack": stores / "stack.zarr"}),
        ("was fitted to", [stores / "stack.zarr"], {"model": tmp_path / "other.zarr"}),
        ("was fitted to", [tmp_path / "other.zarr"], {"stack": stores / "stack.zarr"}),
        ("model", [stores / "scores.zarr"], {}),
        ("leave out --model", [stores / "model.zarr"], {"model": stores / "model.zarr"}),
        ("not a model", [stores / "stack.zarr"], {"model": stores / "stack.zarr"}),
    ):
        with pytest.raises((DataError, StoreError), match=says):
            opened(*paths, **how)
    with pytest.raises(DataError, match="--stack"):
        opened(stores / "model.zarr").view(0, 1)


def test_a_store_that_disappears_is_missed_and_a_model_that_is_written_again_is_shown(
    stores: Path, tmp_path: Path
) -> None:
    values = np.random.default_rng(0).integers(0, 255, (20, 9, 9), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(1, 9, 9))
    dpca.PCA(2).fit(values).save(tmp_path / "m.zarr")
    found = open_explorer(str(tmp_path / "a.zarr"), model=str(tmp_path / "m.zarr"))
    found.load()
    watched, explorer = LiveModelStore(found.watched, found.load, found.explorer), found.explorer
    watched.check()
    assert (explorer.version, explorer.n_components) == (1, 2)
    dpca.PCA(4).fit(values).save(tmp_path / "m.zarr", overwrite=True)
    watched.check()
    assert (explorer.version, explorer.n_components) == (2, 4)
    (tmp_path / "m.zarr").rename(tmp_path / "away.zarr")
    watched.check()
    assert "no model at" in explorer.news
    dpca.PCA(1).fit(values[:, :4]).save(tmp_path / "m.zarr")
    watched.check()
    assert "was fitted to" in explorer.news
    shutil.rmtree(tmp_path / "m.zarr")
    (tmp_path / "away.zarr").rename(tmp_path / "m.zarr")
    watched.check()
    assert explorer.news == ""
    assert explorer.version == 3
    (tmp_path / "a.zarr").rename(tmp_path / "b.zarr")
    with pytest.raises(StoreError, match="exists"):
        explorer.view(19, 1)
    zarr.create_array(tmp_path / "a.zarr", data=values.astype(np.uint16), chunks=(1, 9, 9))
    with pytest.raises(StoreError, match="replaced"):
        explorer.view(19, 1)
    shutil.rmtree(tmp_path / "a.zarr")
    (tmp_path / "b.zarr").rename(tmp_path / "a.zarr")
    zarr.open_array(tmp_path / "a.zarr").resize((30, 9, 9))  # it grows
    assert explorer.view(19, 1).index == 19


def test_the_model_of_a_fit_that_another_program_runs_says_how_far_it_is(stores: Path, tmp_path: Path) -> None:
    fit_store(
        open_stack(stores / "stack.zarr"),
        tmp_path / "model.zarr",
        dpca.StreamingPCA(3, random_state=0),
        live=tmp_path / "live.zarr",
    )
    explorer = opened(tmp_path / "live.zarr", stack=stores / "stack.zarr")
    assert explorer.progress.startswith(f"{N} of {N} samples in ")
    assert explorer.n_components == 3


def test_missing_values_are_not_taken_for_dark_ones(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((3, 12, 14)).astype(np.float32)
    values[1, 2:4] = np.nan
    values[2, 0, 0] = np.inf
    zarr.create_array(tmp_path / "a.zarr", data=values)
    explorer = opened(tmp_path / "a.zarr")
    shown = levels(explorer.view(1, 1).original)
    np.testing.assert_array_equal(shown[2:4], np.broadcast_to(np.rint(255 * np.array(NO_DATA)), (2, 14, 3)))
    assert shown[4:].max() == 255
    assert levels(explorer.view(2, 1).original).max() == 255
    assert levels(explorer.thumbnail(1)).shape == (12, 14, 3)
    zarr.create_array(tmp_path / "v.zarr", data=values.reshape(3, -1))
    curve = opened(tmp_path / "v.zarr").view(1, 1)
    assert "nan" not in markup.triplet(curve)


def test_a_fit_shows_what_it_has_and_ends_when_it_is_told(stores: Path) -> None:
    for stopped in (False, True):
        opened = open_explorer(str(stores / "stack.zarr"))
        explorer, used = opened.explorer, []
        use = explorer.use
        fit = LiveFit(explorer, 99)

        def told(model: Any, fit: LiveFit = fit, use: Any = use, used: list[int] = used, stop: bool = stopped) -> None:
            use(model)
            used.append(model.n_samples_seen_)
            if stop:
                fit.stop(0)

        explorer.use = told
        fit.start()
        assert explorer.stop_fit is not None
        fit.wait()
        assert not explorer.fitting
        assert used[0] == 16
        assert (len(used) == 1) if stopped else used[-1] == N
        assert re.match(rf"{used[-1]} of {N} samples in \d+ s: the components explain ", explorer.progress)
        assert explorer.n_components == min(N - 1, used[-1])
        assert not explorer.news


def test_a_fit_that_fails_is_told(stores: Path, tmp_path: Path) -> None:
    shutil.copytree(stores / "stack.zarr", tmp_path / "stack.zarr")
    opened = open_explorer(str(tmp_path / "stack.zarr"))
    for shard in (tmp_path / "stack.zarr" / "samples" / "c").rglob("*"):
        if shard.is_file():
            shard.write_bytes(b"")
    fit = LiveFit(opened.explorer, 3)
    fit.start()
    fit.wait()
    assert "stack.zarr" in opened.explorer.news
    assert not opened.explorer.fitting


def test_names_are_text(stores: Path) -> None:
    explorer = opened(stores / "stack.zarr")
    for index in range(len(HOSTILE)):
        view = explorer.view(index, 1)
        text = (
            markup.title(view)
            + markup.triplet(view)
            + markup.gallery([(index, view.name, markup.picture(view.original, ""))])
        )
        assert "<script" not in text
        assert "<img src=x" not in text
        assert text.isprintable()
    assert len(markup.shortened("ä" * 10_000)) <= 300
    assert markup.shortened("a\x1b[2J\ud800") == "a\\x1b[2J\\ud800"
    assert markup.shortened("a\u202egpj.exe") == "a\\u202egpj.exe"
    assert markup.shortened("\u05d0\u200f") == "\u05d0\u200f"  # Hebrew as it is written


def test_a_bound_is_never_rounded_up() -> None:
    seen = SimpleNamespace(n_samples_seen=5, n_samples=9, seconds=1.0, captured_variance=0.5, captured_bound=0.99996)
    assert "at least 99.9% of the optimum" in describe_progress(seen)


def test_ranks_of_cells_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 255, (12, 16, 16)).astype(np.uint8)
    np.save(tmp_path / "x.npy", values)
    dpca.CellPCA(2, cell_shape=4).fit(tmp_path / "x.npy").save(tmp_path / "model.zarr")
    counted, ranks = [], LinearRepresentation.ranks.fget
    monkeypatch.setattr(LinearRepresentation, "ranks", property(lambda self: counted.append(1) or ranks(self)))
    explorer = opened(tmp_path / "model.zarr", stack=tmp_path / "x.npy")
    sizes = [explorer.view(index, k).size for index, k in ((0, 1), (1, 2), (2, 2))]
    assert sizes == ["16 numbers, 64 bytes", "32 numbers, 128 bytes", "32 numbers, 128 bytes"]
    assert len(counted) == 1
