"""Examples in docstrings run, and print the stated output."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import importlib.util
import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dpca
from dpca.jobs import encode_store, fit_store, transform_store
from dpca.storage import Appender, ingest
from tests.conftest import smooth_images

HOUSE = Path(dpca.__file__).parents[1]


def documented() -> Iterator[tuple[str, str]]:
    """Yield module and name of every object with an example in its docstring."""
    for folder in ("dpca", "storage"):
        for path in sorted((HOUSE / folder).rglob("*.py")):
            if "pipelines" in path.parts:
                continue
            parts = path.relative_to(HOUSE).with_suffix("").parts
            module = ".".join(parts if folder == "dpca" else ("dpca", *parts))
            for node, name in _named(ast.parse(path.read_text())):
                if ">>>" in (ast.get_docstring(node) or ""):
                    yield module.removesuffix(".__init__"), name


def _named(tree: ast.Module) -> Iterator[tuple[ast.Module | ast.ClassDef | ast.FunctionDef, str]]:
    nodes: list[tuple[ast.Module | ast.ClassDef | ast.FunctionDef, str]] = [(tree, "")]
    while nodes:
        node, name = nodes.pop()
        yield node, name
        inner = (one for one in node.body if isinstance(one, ast.ClassDef | ast.FunctionDef))
        nodes += [(one, f"{name}.{one.name}".strip(".")) for one in inner]


EXAMPLES = list(documented())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stores that the examples use."""
    folder = tmp_path_factory.mktemp("made")
    images = smooth_images(30)
    np.save(folder / "a.npy", images)
    stack = ingest(folder / "a.npy", folder / "stack.zarr")
    fit_store(stack, folder / "cells.zarr", dpca.CellPCA(4, cell_shape=10))
    encode_store(stack, folder / "cells.zarr", folder / "photos.zarr", ratio=8)
    transform_store(stack, folder / "cells.zarr", folder / "out.zarr")
    shutil.copytree(folder / "cells.zarr", folder / "out.zarr" / "model")
    fit_store(stack, folder / "model.zarr", dpca.StreamingPCA(2, random_state=0), live=folder / "live.zarr")
    with Appender(folder / "run.zarr", (40, 36, 3), "u1") as steps:
        steps.append(images)
    return folder


@pytest.mark.parametrize(("module", "name"), EXAMPLES, ids=[name or module for module, name in EXAMPLES])
def test_an_example_prints_its_stated_output(
    module: str, name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module.startswith("dpca.torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "here"))
    text = inspect.getdoc(functools.reduce(getattr, filter(None, name.split(".")), importlib.import_module(module)))
    assert text is not None
    assert "{{" not in text
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    assert example.examples
    assert not any(doctest.SKIP in one.options for one in example.examples)
    printed: list[str] = []
    assert doctest.DocTestRunner().run(example, out=printed.append).failed == 0, "".join(printed)


@pytest.mark.parametrize("name", sorted({*dpca.__all__} - {"torch"}))
def test_no_docstring_has_an_unfilled_placeholder(name: str) -> None:
    assert "{{" not in (inspect.getdoc(getattr(dpca, name)) or "")


def test_completion_offers_only_public_names() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import dpca, dpca.plots, dpca.jobs; print(*dir(dpca), '-', *dir(dpca.plots))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    of_package, _, of_plots = shown.partition(" - ")
    for module, names in ((dpca, of_package), (dpca.plots, of_plots)):
        assert {name for name in names.split() if not name.startswith("__")} == set(module.__all__)
