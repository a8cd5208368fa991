"""``dpca fit --key`` and ``dpca transform`` of several variables of a file, against the SVD of all side by side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray
import zarr

from dpca import PCA, CellPCA, StreamingPCA, load, open_scores
from dpca.cli import main
from dpca.engine.sources.variables import VariableStack
from dpca.jobs import fit_store, transform_store
from dpca.storage import DataError, verify
from dpca.storage.run import Run

N, K = 40, 3


def made(shape: tuple[int, ...], scale: float, seed: int) -> np.ndarray:
    """Return samples of three modes that all variables share, with noise."""
    series, rng = np.random.default_rng(0).normal(size=(N, K)) * [4, 2, 1], np.random.default_rng(seed)
    d = int(np.prod(shape))
    rows = series @ rng.normal(size=(K, d)) + 0.1 * rng.normal(size=(N, d)) + 7
    return np.asarray(scale * rows).reshape(N, *shape)


U, P = made((6, 8), 1.0, 1), made((5, 4), 100.0, 2)
FIELDS = {"u": U, "p": P}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the variables to files of several formats."""
    monkeypatch.chdir(tmp_path)
    data = {"u": (("time", "y", "x"), U), "p": (("time", "lat", "lon"), P)}
    xarray.Dataset(data, {"time": np.arange(N) * 2.0}).to_netcdf("fields.nc", engine="scipy")
    group = zarr.open_group("fields.zarr", mode="w")
    for name, chunks in (("u", (7, 6, 8)), ("p", (9, 5, 4))):
        group.create_array(name, data=FIELDS[name], chunks=chunks)
    with h5py.File("fields.h5", "w") as file:
        file["u"], file["p"], file["deep/short"], file["line"] = U, P, P[:30], np.arange(N)


def side_by_side() -> np.ndarray:
    """Return rows of both variables."""
    return np.hstack([x.reshape(N, -1) for x in FIELDS.values()])


def factors(how: str) -> np.ndarray:
    """Return the factors of all attributes."""
    variance = [x.reshape(N, -1).var(axis=0) for x in FIELDS.values()]
    if how == "--standardize variable":
        variance = [np.full_like(one, one.sum()) for one in variance]
    return np.concatenate(variance) ** -0.5 if how else np.ones(68)


@pytest.mark.parametrize("how", ["", "--standardize", "--standardize variable"])
@pytest.mark.parametrize("name", ["fields.nc", "fields.zarr", "fields.h5"])
def test_model_and_scores_are_those_of_all_side_by_side(
    name: str, how: str, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--scheduler", scheduler]
    command = ["fit", name, "model.zarr", "--key", "u,p", *how.split(), "--components", str(K), *where]
    assert main(command) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("variables u, p, 3 components, 99.")
    assert last.endswith(f"next: dpca transform model.zarr {name} SCORES.zarr")
    assert main(["transform", "model.zarr", name, "scores.zarr", *where]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    model, x, w = load("model.zarr"), side_by_side(), factors(how)
    mean, weighted = x.mean(axis=0), (x - x.mean(axis=0)) * w
    _, s, v = np.linalg.svd(weighted, full_matrices=False)
    np.testing.assert_allclose(model.explained_variance_, s[:K] ** 2 / (N - 1), rtol=1e-9)
    np.testing.assert_allclose(np.abs((model.components_ * v[:K]).sum(axis=1)), 1, atol=1e-9)
    expected = weighted @ model.components_.T
    store = open_scores("scores.zarr", model="model.zarr")
    np.testing.assert_allclose(store.scores.compute(), expected, atol=1e-8 * np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(model.transform(name)), expected, atol=1e-8 * np.abs(expected).max())
    # The error of each variable, in its own units.
    lost = (mean + (expected @ model.components_) / w - x) ** 2
    errors = np.stack([lost[:, :48].mean(axis=1), lost[:, 48:].mean(axis=1)], axis=1)
    group = zarr.open_group("scores.zarr", mode="r")
    np.testing.assert_allclose(group["variable_mse"][...], errors, rtol=1e-6)
    assert "mse" not in group
    assert "psnr" not in group
    means = "   ".join(f"mean mse of {key} {one:.6g}" for key, one in zip("up", errors.mean(axis=0), strict=True))
    assert last == f"{means}; next: dpca info scores.zarr"
    assert verify("scores.zarr") == verify("model.zarr") == []
    if name == "fields.nc":
        np.testing.assert_array_equal(group["time"][...], np.arange(N) * 2.0)
        assert store.coordinates.dims == ("time", "feature")
    # Names of the variables.
    assert main(["info", "model.zarr"]) == 0
    assert "keys: u, p, shapes: 6 x 8, 5 x 4" in capsys.readouterr().out
    assert main(["info", "scores.zarr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variables"] == ["u", "p"]
    for one in (command, ["transform", "model.zarr", name, "scores.zarr", *where]):
        assert main(one) == 0
        assert "nothing to do" in capsys.readouterr().out


def test_bytes_stay_integers_and_a_share_chooses_components(scheduler: str) -> None:
    group = zarr.open_group("bytes.zarr", mode="w")
    x = {name: np.clip(3 * (field - field.mean()) / field.std() * 20 + 128, 0, 255) for name, field in FIELDS.items()}
    for name, field in x.items():
        group.create_array(name, data=field.astype("u1"), chunks=(9, *field.shape[1:]))
    assert main(["fit", "bytes.zarr", "m.zarr", "--key", "u,p", "--threshold", ".9", "--scheduler", scheduler]) == 0
    assert main(["transform", "m.zarr", "bytes.zarr", "s.zarr", "--scheduler", scheduler]) == 0
    model, rows = load("m.zarr"), np.hstack([field.astype("u1").reshape(N, -1) for field in x.values()])
    whole = PCA(0.9).fit(rows)
    np.testing.assert_array_equal(model.components_, whole.components_)
    back = np.clip(np.rint(whole.inverse_transform(whole.transform(rows))), 0, 255).astype(float)
    found = zarr.open_group("s.zarr", mode="r")["variable_mse"][...]
    np.testing.assert_allclose(found[:, 1], ((back - rows)[:, 48:] ** 2).mean(axis=1), rtol=1e-9)


def test_another_value_of_any_variable_is_another_input(scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fit", "fields.zarr", "model.zarr", "--key", "u,p", "--components", "2", "--scheduler", scheduler]
    assert main(command) == 0
    assert main([*command[:4], "p,u", *command[5:]]) == 4  # the order is that of the attributes
    assert "settings" in capsys.readouterr().err
    zarr.open_array("fields.zarr/p", mode="r+")[-1] += 1
    assert main(command) == 4
    assert "other input" in capsys.readouterr().err


def test_an_ended_fit_resumes(scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    group, rng = zarr.open_group("long.zarr", mode="w"), np.random.default_rng(3)
    for name, shape in (("u", (9000, 3, 2)), ("p", (9000, 4))):
        group.create_array(name, data=rng.normal(size=shape), chunks=(500, *shape[1:]))
    command = ["--key", "u,p", "--standardize", "--components", "2", "--scheduler", scheduler]
    assert main(["fit", "long.zarr", "whole.zarr", *command]) == 0
    ended = ["fit", "long.zarr", "model.zarr", *command, "--live", "live.zarr"]
    assert main([*ended, "--max-samples", "16"]) == 0
    assert not Path("model.zarr").exists()
    assert load("live.zarr").n_samples_seen_ < 9000
    assert capsys.readouterr().out.splitlines()[-1].startswith("variables u, p, 2 components")
    assert main(ended) == 0
    for name in ("components_", "mean_", "explained_variance_"):
        np.testing.assert_array_equal(getattr(load("model.zarr"), name), getattr(load("whole.zarr"), name))


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("fit fields.h5 m.zarr --key u,t --components 2", 3, "no array 't'"),
        ("fit fields.zarr m.zarr --key u,t --components 2", 3, "no array 't': its arrays are p, u"),
        ("fit fields.h5 m.zarr --key u,deep/short --components 2", 3, "u has 40 samples and deep/short 30"),
        ("fit fields.h5 m.zarr --key u,p,u --components 2", 3, "'u' is given twice"),
        ("fit fields.h5 m.zarr --key u,line --components 2", 3, "sample axis"),
        ("fit fields.h5 m.zarr --key u, --components 2", 2, "NAME"),
        ("fit fields.h5 m.zarr --key u,p --cell 10 --components 2", 2, "--cell: not allowed with argument --key"),
        ("fit fields.h5 m.zarr --key u,p --components 2 --mask x.npy", 3, "--mask"),
        ("fit fields.h5 m.zarr --key u,p --components 2 --data-range 0,1", 3, "--data-range"),
        ("fit fields.h5 m.zarr --key u,p --ratio 3", 3, "--ratio requires cells"),
        ("fit fields.zarr/u m.zarr --cell 4 --components 2 --standardize", 3, "--standardize requires variables"),
        ("fit none.nc m.zarr --key u,p --components 2", 3, "none.nc"),
        ("transform model.zarr fields.zarr/u s.zarr", 3, "'fields.zarr/u/u'"),
        ("transform model.zarr other.zarr s.zarr", 3, "u (6, 8), p (5, 4)"),
        ("transform model.zarr fields.zarr s.zarr --reconstruct", 3, "reconstruct"),
        ("reconstruct model.zarr scores.zarr again.zarr", 3, "variables u, p"),
        ("export scores.zarr out/ --model model.zarr", 3, "variables u, p"),
    ],
)
def test_errors_are_one_sentence(
    command: str, code: int, words: str, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command.startswith(("transform", "reconstruct", "export")):
        stack = VariableStack.of("fields.zarr", ["u", "p"])
        fit_store(stack, "model.zarr", PCA(2))
        transform_store(stack, "model.zarr", "scores.zarr")
        zarr.open_group("other.zarr", mode="w").create_array("u", data=U[:, :5])
        zarr.open_group("other.zarr", mode="r+").create_array("p", data=P)
    before = {path.name for path in Path().iterdir()}
    given = [*command.split(), *([] if command.startswith("export") else ["--scheduler", scheduler])]
    try:
        found = main(given)
    except SystemExit as error:  # from argparse
        found = error.code
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert found == code
    assert words in last
    assert "error: " in last
    assert len(last) < 500
    assert {path.name for path in Path().iterdir()} == before


@pytest.mark.parametrize("made_by", [PCA(2, standardize="variable"), StreamingPCA(2, weights="coslat")])
def test_jobs_of_other_estimators_and_python(made_by: Any) -> None:
    data = {"u": (("time", "lat", "x"), U), "p": (("time", "lat2", "x2"), P)}
    if made_by.weights is not None:
        data["p"] = (("time", "x2", "lat2"), P)
        grid = {"lat": np.linspace(-60, 60, 6), "lat2": ("lat2", np.linspace(0, 50, 4), {"units": "degrees_north"})}
        xarray.Dataset(data, grid).to_netcdf("fields.nc", engine="scipy")
    stack = VariableStack.of("fields.nc", ["u", "p"])
    assert (stack.n_samples, stack.sample_shape, stack.axes) == (N, (68,), ("sample", "feature"))
    model = fit_store(stack, "model.zarr", made_by).model
    # Tasks of a cluster do not compute arrays of files: a worker would wait for others.
    transform_store(stack, "model.zarr", "scores.zarr", run=Run(client=object()))  # type: ignore[arg-type]
    found = zarr.open_array("scores.zarr/scores", mode="r")[...]
    np.testing.assert_allclose(found, np.asarray(model.transform("fields.nc")), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.asarray(model.transform(stack)), found, rtol=1e-9, atol=1e-9)
    back = model.inverse_transform(found)
    assert {name: part.shape for name, part in back.items()} == {name: x.shape for name, x in FIELDS.items()}
    with pytest.raises(DataError, match="variables"):
        CellPCA(2, cell_shape=4).fit(stack)
    with pytest.raises(DataError, match="twice"):
        PCA(2).fit("fields.h5", key=["u", "p", "u"])
    with pytest.raises(DataError, match="twice"):
        VariableStack.of("fields.h5", ["u", "u"])
    assert PCA(2).fit(stack, key=["u"]).n_features_in_ == 48
    reordered = VariableStack.of("fields.nc", ["p", "u"])
    with pytest.raises(DataError, match="order"):
        transform_store(reordered, "model.zarr", "others.zarr")
    np.testing.assert_allclose(np.asarray(model.transform(reordered)), found, rtol=1e-9, atol=1e-9)
    shutil.rmtree("model.zarr")
    fit_store(VariableStack.of("fields.nc", ["u"]), "model.zarr", PCA(2))
    with pytest.raises(DataError, match="fitted"):
        transform_store(stack, "model.zarr", "others.zarr")
