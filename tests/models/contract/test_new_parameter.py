"""One declaration adds a parameter to the constructor, check, docstring, options, job files and stores.

It tries the recipe "a parameter" of CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import clone

import dpca
from dpca import CellPCA
from dpca.cli import model_arguments
from dpca.cli.job_file import read_job_file
from dpca.models.base.docs import PARTITIONED, documented
from dpca.models.base.store import load_any, stated_by
from dpca.parameters.cells import CellParameters
from dpca.parameters.declaration import Option, declared_in, parameter
from dpca.parameters.kinds import whole
from dpca.storage import DataError, StoreError
from tests.helpers.resealing import edit_facts

X = np.random.default_rng(0).integers(0, 200, (20, 8, 9)).astype(np.uint8)


@dataclass(eq=False, repr=False, kw_only=True)
class MoreParameters(CellParameters):
    """The parameters of cells, and one more."""

    margin: int = parameter(2, whole(0), "Pixels of the margin. They are ignored.", option=Option("--margin", "N"))


@documented(**PARTITIONED, part="cell", parts="cells", grid="*grid_shape")
class MarginPCA(MoreParameters, CellPCA):
    """Cells with a margin.

    Parameters
    ----------
    {parameters}
    """

    store_kind: ClassVar[str] = "margin-pca"


def test_it_is_in_the_constructor_and_the_docstring() -> None:
    assert MarginPCA(cell_shape=4).margin == 2
    assert clone(MarginPCA(cell_shape=4, margin=3)).get_params()["margin"] == 3
    text = inspect.getdoc(MarginPCA) or ""
    assert "\nmargin : int\n    Pixels of the margin. They are ignored." in text


@pytest.mark.parametrize("margin", [-1, 1.5, "wide", True, None, np.array([1, 2])])
def test_it_is_checked(margin: Any) -> None:
    with pytest.raises(DataError, match="margin"):
        MarginPCA(2, cell_shape=4, margin=margin).fit(X)


def test_it_is_stored_if_it_is_given(tmp_path: Path) -> None:
    MarginPCA(2, cell_shape=4, margin=3).fit(X).save(tmp_path / "given")
    assert load_any(tmp_path / "given").margin == 3
    assert stated_by(tmp_path / "given")["parameters"] == {"margin": 3}
    fitted = MarginPCA(2, cell_shape=4).fit(X)
    fitted.save(tmp_path / "default")
    assert "parameters" not in stated_by(tmp_path / "default")
    assert load_any(tmp_path / "default").margin == 2
    assert "margin" not in fitted.fit_settings()
    assert clone(fitted).set_params(margin=3).fit_settings()["margin"] == 3
    edit_facts(tmp_path / "given", lambda facts: facts["parameters"].update(margin=-1))
    with pytest.raises(StoreError, match="margin"):
        load_any(tmp_path / "given")


@pytest.fixture
def _on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line knows the class instead of `CellPCA`."""
    monkeypatch.setitem(model_arguments._ESTIMATORS, "CellPCA", (MoreParameters, "cell_shape", "cells: give --cell"))
    monkeypatch.setattr("dpca.models.CellPCA", MarginPCA)


@pytest.mark.usefixtures("_on_the_command_line")
def test_it_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    model_arguments.add_model_options(parser, required=False)
    assert "--margin N            pixels of the margin (default: 2)" in parser.format_help()
    model = model_arguments.partitioned_model(parser.parse_args(["--cell", "4", "--margin", "3"]))
    assert (type(model), model.margin) == (MarginPCA, 3)
    with pytest.raises(SystemExit):
        parser.parse_args(["--margin", "-1"])
    assert "an integer of at least 0" in capsys.readouterr().err
    with pytest.raises(DataError, match="--margin"):
        model_arguments.partitioned_model(parser.parse_args(["--band-size", "4", "--margin", "3"]))


@pytest.mark.usefixtures("_on_the_command_line")
def test_it_is_a_key_of_job_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    file = tmp_path / "job.toml"
    file.write_text('inputs = ["a.npy"]\noutput = "small.zarr"\nmargin = 3\ncell = 4\n[target]\npsnr = 30\n')
    job = read_job_file(str(file))
    assert model_arguments.partitioned_model(job.options).margin == 3


@pytest.mark.parametrize("name", sorted({*dpca.__all__}))
def test_every_parameter_of_every_estimator_is_declared_and_valid(name: str) -> None:
    cls = getattr(dpca, name)
    declared = declared_in(cls) if isinstance(cls, type) and hasattr(cls, "get_params") else {}
    for one, parameter_of in inspect.signature(cls).parameters.items() if declared else ():
        assert parameter_of.default is inspect.Parameter.empty or declared[one].accepts(parameter_of.default), one
        assert declared[one].text.endswith((".", ".)")), one
