"""Compressed stores that keep infinities, as missing values of two more kinds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpca import PCA, BandPCA, CellPCA, Run, StreamingPCA, open_compressed
from dpca.cli import main
from dpca.jobs import CompressionSettings, append_store, compress, encode_store, fit_store
from dpca.jobs.compressed.decode import decode_store
from dpca.jobs.compressed.verify_quality import verify_quality
from dpca.kernels.algebra.types import Array
from dpca.storage import DataError, StoreError, open_stack, verify
from dpca.storage.input import open_input
from tests.helpers.interrupted import interrupt_at
from tests.jobs.compressed.test_encode_gaps import FORMAT, SHAPE, masks, sea

pytestmark = pytest.mark.usefixtures("small_pictures")
CELLS = CellPCA(3, cell_shape=12, gaps="iterate", missing_value="infinite", random_state=0)


def divided(first: int = 0) -> Array:
    """Return a field in which divisions failed: in a block that moves, both ways, and at a few places."""
    x = np.where(masks()["land"], np.float32(np.nan), sea())
    for i, sample in enumerate(x):
        sample[2:5, (first + i) % 25 :][:, :4] = np.inf
        sample[15, i % 30] = -np.inf
    return x


def assert_kept(found: Array, x: Array, max_error: float = np.inf) -> None:
    here = np.isfinite(x)
    np.testing.assert_array_equal(found[~here], x[~here])
    assert np.abs(found[here].astype(float) - x[here]).max() <= max_error


def stack_of(path: Path, x: Array) -> Any:
    zarr.create_array(str(path), data=x, chunks=(20, *SHAPE))
    return open_stack(path)


@pytest.mark.parametrize("goal", [{"max_error": 0.3}, {"ratio": 8.0}], ids=["bound", "ratio"])
def test_they_come_back_where_they_were(tmp_path: Path, goal: dict[str, Any]) -> None:
    x, path = divided(), tmp_path / "c"
    stack = stack_of(tmp_path / "x.zarr", x)
    fit_store(stack, tmp_path / "model", CELLS)
    encode_store(stack, tmp_path / "model", path, **goal)
    store = open_compressed(path)
    y = store[...]
    assert_kept(y, x, goal.get("max_error", np.inf))
    np.testing.assert_array_equal(store[95:3:-7, 1:20, [2, 9, 4]], y[95:3:-7, 1:20, [2, 9, 4]])
    assert store.facts["version"] == 4
    finite = x[np.isfinite(x)]
    assert store.facts["data_range"] == [finite.min(), finite.max()]
    assert verify(path) == [] == verify_quality(str(path), stack)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"```python\n(.*?)```", FORMAT.read_text(), re.DOTALL)), names)
    np.testing.assert_allclose(names["read_compressed"](str(path)), y, rtol=1e-5)
    decode_store(path, tmp_path / "back")
    np.testing.assert_array_equal(open_stack(tmp_path / "back").samples[...], y)
    assert verify(tmp_path / "back") == []
    # NaN, the other infinity or a number instead of an infinity are other samples.
    for number, value in enumerate((np.nan, -np.inf, 15)):
        other = x.copy()
        other[5, 2, 5] = value
        assert len(verify_quality(str(path), stack_of(tmp_path / f"other{number}.zarr", other))) == 1
    zarr.open_array(str(path / "infinities"), mode="r+")[...] = 7
    with pytest.raises(StoreError, match="infinities"):
        open_compressed(path)[...]


def test_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, output = divided(), tmp_path / "c.zarr"
    np.save(tmp_path / "x.npy", x)
    argv = ["compress", str(tmp_path / "x.npy"), str(output), "--quality", "max-error=0.3", "--cell", "12"]
    argv += ["--components", "3", "--gaps", "iterate"]
    assert main(argv) == 3
    assert "inf" in capsys.readouterr().err
    assert not output.exists()
    assert main([*argv, "--missing-value", "infinite", "--keep-stack"]) == 0
    assert_kept(open_compressed(output)[...], x, 0.3)
    assert verify(output) == []


def test_samples_that_are_appended(tmp_path: Path) -> None:
    x, more = divided(), divided(7)[:30]
    np.save(tmp_path / "x.npy", x[:70])
    compress(tmp_path / "x.npy", tmp_path / "c.zarr", CompressionSettings(CELLS, goal={"max_error": 0.3}))
    np.save(tmp_path / "more.npy", more)
    append_store(tmp_path / "c.zarr", open_input(tmp_path / "more.npy"), drift="accept")
    assert_kept(open_compressed(tmp_path / "c.zarr")[...], np.concatenate([x[:70], more]), 0.3)
    assert verify(tmp_path / "c.zarr") == []


def test_the_same_bytes_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", divided())
    settings, files = CompressionSettings(CELLS, goal={"max_error": 0.3}), []
    for name in ("whole.zarr", "again.zarr"):
        for allowed in (2, 4) if name == "again.zarr" else ():
            left = iter([True] * allowed)
            with monkeypatch.context() as patch:
                interrupt_at(patch, lambda unit, left=left: next(left, False))
                with pytest.raises(KeyboardInterrupt):
                    compress(tmp_path / "x.npy", tmp_path / name, settings, run=Run(threads=1))
        compress(tmp_path / "x.npy", tmp_path / name, settings)
        found = (p for p in (tmp_path / name).rglob("*") if p.is_file())
        files.append({p.relative_to(tmp_path / name): p.read_bytes() for p in found})
    assert files[0] == files[1]


def test_a_stack_in_which_infinities_are_filled(tmp_path: Path) -> None:
    x = divided()
    x[:, 20, 20] = np.inf  # no value to learn from
    np.save(tmp_path / "x.npy", x)
    argv = ["fill", str(tmp_path / "x.npy"), str(tmp_path / "filled"), "--cell", "12", "--components", "3"]
    assert main(argv) == 3
    assert main([*argv, "--missing-value", "infinite"]) == 0
    found, here = open_stack(tmp_path / "filled").samples[...], np.isfinite(x)
    np.testing.assert_array_equal(found[here], x[here])
    some = here.any(axis=0)
    assert np.abs(found - sea())[:, some].max() < 1.5
    np.testing.assert_array_equal(found[:, ~some], x[:, ~some])
    assert verify(tmp_path / "filled") == []


def test_jobs_have_the_settings_of_earlier_versions() -> None:
    settings = CompressionSettings(CELLS, goal={"max_error": 0.3})
    assert settings.as_dict()["infinite"]
    assert "infinite" not in CompressionSettings(CellPCA(3, cell_shape=12), goal={"max_error": 0.3}).as_dict()


def test_stores_without_infinities(tmp_path: Path) -> None:
    x = np.where(masks()["land"], np.float32(np.nan), sea())
    np.save(tmp_path / "x.npy", x)
    files = []
    for name, marks in (("c.zarr", "infinite"), ("d.zarr", None)):
        settings = CompressionSettings(
            CellPCA(**CELLS.get_params() | {"missing_value": marks}), goal={"max_error": 0.3}
        )
        compress(tmp_path / "x.npy", tmp_path / name, settings)
        chunks = (tmp_path / name).rglob("c/**/*")
        files.append({p.relative_to(tmp_path / name): p.read_bytes() for p in chunks if p.is_file()})
    assert files[0] == files[1]
    assert open_compressed(tmp_path / "c.zarr").facts["version"] == 3
    np.save(tmp_path / "more.npy", divided()[:5])
    with pytest.raises(DataError, match="inf"):
        append_store(tmp_path / "c.zarr", open_input(tmp_path / "more.npy"), drift="accept")


@pytest.mark.parametrize("cls", [PCA, CellPCA, BandPCA, StreamingPCA], ids=["whole", "cells", "bands", "stream"])
def test_models_of_infinities_are_those_of_missing_values(cls: Any) -> None:
    x = np.where(np.isnan(divided()), sea(), divided())[:, :12, :12].astype(np.float64)
    x[::3, 7, 7] = np.nan
    given = {CellPCA: {"cell_shape": 6}, BandPCA: {"band_size": 50}}.get(cls, {})
    model = cls(2, gaps="iterate", missing_value="infinite", random_state=0, **given).fit(x)
    same = np.where(np.isinf(x), np.nan, x)
    other = cls(2, gaps="iterate", random_state=0, **given).fit(same)
    np.testing.assert_array_equal(model.components_, other.components_)
    np.testing.assert_array_equal(model.transform(x), other.transform(same))
    np.testing.assert_array_equal(model.fill(x), other.fill(same))
    with pytest.raises(DataError, match="infinite"):
        other.transform(x)
    with pytest.raises(DataError, match="missing_value"):
        cls(2, gaps="iterate", missing_value="huge", **given).fit(x)
