"""Stores of earlier versions can be read, and return the same values."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import dpca
from dpca.jobs import fit_store
from dpca.jobs.base.stages import NOTHING
from dpca.models.base.store import load_any
from dpca.storage import open_stack, verify

FIXTURES = Path(__file__).parents[1] / "fixtures"
with zipfile.ZipFile(FIXTURES / "with-manifest.zip") as _archive, _archive.open("expected.npz") as _file:
    EXPECTED = dict(np.load(_file))
MODELS = sorted({name.partition("/")[0] for name in EXPECTED if name.endswith("/scores")})
SCORES = sorted({name.partition("/")[0] for name in EXPECTED if name.endswith("/stack") and "job" not in name})
IMAGES = EXPECTED["images"]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with-manifest")
    with zipfile.ZipFile(FIXTURES / "with-manifest.zip") as archive:
        archive.extractall(folder)
    return folder


def test_the_stack(old: Path) -> None:
    stack = open_stack(old / "stack")
    assert stack.axes == ("sample", "y", "x", "channel")
    assert stack.data_range == (0, 255)
    np.testing.assert_array_equal(stack.samples[:], IMAGES)
    assert list(stack.names[:2]) == ["00", "01"]


@pytest.mark.parametrize("name", MODELS)
def test_models(old: Path, name: str) -> None:
    model = load_any(old / f"{name}.model")
    again = type(model).load(old / f"{name}.model")
    assert again.get_params() == model.get_params()
    for loaded in (model, again):
        # Rounding depends on the BLAS library.
        np.testing.assert_allclose(
            loaded.transform(IMAGES[:6]), EXPECTED[f"{name}/scores"], rtol=1e-4, atol=2e-3, err_msg=name
        )
        back = loaded.inverse_transform(EXPECTED[f"{name}/scores"][:3])
        np.testing.assert_allclose(back.reshape(3, -1)[:, ::7], EXPECTED[f"{name}/back"], rtol=1e-4, atol=2e-3)


@pytest.mark.cases(1)
def test_a_saved_copy_of_an_old_model_is_the_same(old: Path, tmp_path: Path) -> None:
    for name in MODELS:
        model = load_any(old / f"{name}.model")
        model.save(tmp_path / name)
        again = load_any(tmp_path / name)
        assert again.get_params() == model.get_params(), name
        np.testing.assert_array_equal(again.components_, model.components_)
        np.testing.assert_array_equal(again.explained_variance_, model.explained_variance_)


@pytest.mark.parametrize("name", SCORES)
def test_scores(old: Path, name: str) -> None:
    scores = dpca.open_scores(old / f"{name}.scores", model=old / f"{name}.model")
    pixels = scores.stack().compute()
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - EXPECTED[f"{name}/stack"]).max() <= 1
    assert (pixels == EXPECTED[f"{name}/stack"]).mean() > 0.999
    fewer = dpca.open_scores(old / f"{name}.scores", 2, model=old / f"{name}.model").stack()
    assert fewer.shape == IMAGES.shape


@pytest.mark.parametrize("name", ["job", "stream-job"])
def test_jobs(old: Path, name: str) -> None:
    pixels = dpca.open_scores(old / name).stack().compute()
    assert np.abs(pixels.astype(int) - EXPECTED[f"{name}/stack"]).max() <= 1


@pytest.mark.cases(1)
def test_verify_finds_them_whole(old: Path) -> None:
    for path in sorted(old.iterdir()):
        if path.is_dir():
            assert verify(path) == [], path.name


def test_a_fit_that_is_done_is_not_done_again(old: Path) -> None:
    fitted = fit_store(open_stack(old / "stack"), old / "fitted.model", dpca.CellPCA(3, cell_shape=4))
    assert fitted.cost is NOTHING
