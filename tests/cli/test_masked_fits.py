"""``dpca fit --mask`` and ``dpca transform --mask`` read a stack in place, as one that was ingested with the mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from dpca import CellPCA, load, open_compressed
from dpca.cli import main
from dpca.engine.sources.masked import MaskedStack
from dpca.engine.sources.source import as_source
from dpca.storage import open_stack

SHAPE = (60, 12, 16)


@pytest.fixture
def movie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Write a stack that is NaN or large outside of a region, the region, and the stack ingested with it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    modes = rng.normal(size=(2, 12, 16))
    x = 300 + np.tensordot(rng.normal(size=(60, 2)), modes, 1) + 0.05 * rng.normal(size=SHAPE)
    inside = np.zeros(SHAPE[1:], bool)
    inside[2:9, 3:14] = True
    inside[4, 5:9] = False
    x[:, ~inside] = np.where(rng.random((60, int((~inside).sum()))) < 0.5, np.nan, 1e4)
    zarr.create_array("x.zarr", data=x.astype("f4"), chunks=(7, 5, 16))
    np.save("mask.npy", inside)
    return inside


@pytest.mark.parametrize(
    "how",
    [
        "--cell 6x8 --components 2",
        "--cell 5 --overlap 2 --shared --threshold 0.9",
        "--cell 6x8 --target-psnr 30",
        "--band-size 20 --mapping mean-variance --components 2",
        "--kernel rbf --components 3",
    ],
)
def test_a_fit_is_that_of_the_ingested_region(
    movie: np.ndarray, scheduler: str, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    where = ["--scheduler", scheduler]
    assert main(["ingest", "x.zarr", "inside.zarr", "--mask", "mask.npy", *where]) == 0
    assert main(["fit", "inside.zarr", "copied.zarr", *how.split(), *where]) == 0
    command = ["fit", "x.zarr", "model.zarr", *how.split(), "--mask", "mask.npy", *where]
    assert main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("next: dpca transform model.zarr x.zarr SCORES.zarr --mask mask.npy")
    found, expected = load("model.zarr"), load("copied.zarr")
    for name in ("mean_", "components_", "explained_variance_", "landmarks_", "eigenvalues_"):
        if hasattr(expected, name):
            # Chunks of the two differ, and sums have another order.
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-4, atol=2e-5)
    transforms = {"model.zarr": ("x.zarr", "--mask", "mask.npy"), "copied.zarr": ("inside.zarr",)}
    for model, stack in transforms.items():
        given = [stack[0], f"{model}.scores", *stack[1:]]
        assert main(["transform", model, *given, *where]) == 0
    scores = [zarr.open_group(f"{model}.scores", mode="r")["scores"][...] for model in transforms]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-3, atol=2e-3)
    assert main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    np.save("mask.npy", movie | (np.arange(16) < 3))
    assert main(command) == 4
    assert "other settings" in capsys.readouterr().err


def test_missing_values_inside_are_missing(
    movie: np.ndarray, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    array = zarr.open_array("x.zarr", mode="r+")
    array[3, 2, 3] = np.nan
    command = ["--cell", "12x16", "--components", "2", "--mask", "mask.npy", "--scheduler", scheduler]
    assert main(["fit", "x.zarr", "model.zarr", *command]) == 3
    assert "sample 3 " in capsys.readouterr().err
    assert main(["fit", "x.zarr", "model.zarr", *command, "--gaps", "iterate"]) == 0
    found = load("model.zarr").components_.reshape(2, *SHAPE[1:])
    x = array[...].astype("f8")
    x[:, ~movie] = 300
    expected = CellPCA(2, cell_shape=(12, 16), gaps="iterate", random_state=0).fit(x).components_.reshape(2, *SHAPE[1:])
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-3)
    assert np.abs(found[:, ~movie]).max() < 1e-12


def test_any_box_is_that_of_the_samples(movie: np.ndarray) -> None:
    x = zarr.open_array("x.zarr", mode="r")[...]
    x[:, ~movie] = first = x[0, 2, 3]
    source = as_source(MaskedStack.of(open_stack("x.zarr"), "mask.npy"))
    rng = np.random.default_rng(1)
    for _ in range(20):
        samples, *region = (tuple(sorted(rng.choice(n + 1, 2, replace=False).tolist())) for n in SHAPE)
        expected = x[tuple(slice(*ends) for ends in (samples, *region))]
        for one in (source, source.piece(samples, tuple(region))):
            out = np.empty(expected.shape, "f4")
            one.reader()(samples, tuple(region), out)
            np.testing.assert_array_equal(out, expected)
    assert first in x[0, movie]


def test_the_mask_is_of_the_first_axes(tmp_path: Path, movie: np.ndarray) -> None:
    x = np.random.default_rng(0).integers(0, 255, (9, *SHAPE[1:], 3), np.uint8)
    zarr.create_array("color.zarr", data=x)
    stack = MaskedStack.of(open_stack("color.zarr"), "mask.npy")
    x[:, ~movie] = x[0][movie][0, 0]
    out, source = np.empty_like(x), as_source(stack)
    source.reader()((0, 9), ((0, 12), (0, 16), (0, 3)), out)
    np.testing.assert_array_equal(out, x)
    assert source.dtype == np.uint8
    assert stack.fingerprint != open_stack("color.zarr").fingerprint


def test_an_encoding_is_that_of_the_ingested_region(
    movie: np.ndarray, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--scheduler", scheduler]
    assert main(["ingest", "x.zarr", "inside.zarr", "--mask", "mask.npy", *where]) == 0
    assert main(["fit", "inside.zarr", "model.zarr", "--cell", "6x8", "--components", "4", *where]) == 0
    goal = ["--max-error", "0.05", *where]
    assert main(["encode", "model.zarr", "inside.zarr", "copied.zarr", *goal]) == 0
    command = ["encode", "model.zarr", "x.zarr", "small.zarr", *goal]
    assert main([*command, "--mask", "mask.npy"]) == 0
    x, found = zarr.open_array("x.zarr", mode="r")[...], open_compressed("small.zarr")[...]
    np.testing.assert_allclose(found[:, movie], x[:, movie], atol=0.0501)
    assert np.ptp(found[:, ~movie]) <= 0.1001
    np.testing.assert_allclose(found, open_compressed("copied.zarr")[...], atol=0.1001)
    capsys.readouterr()
    assert main([*command, "--mask", "mask.npy"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main([*command[:-4], "--psnr", "40", *where, "--mask", "mask.npy"]) == 3
    assert "psnr" in capsys.readouterr().err
