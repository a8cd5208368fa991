"""Finished stores of every kind, made once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trust.damage import make_stores


@pytest.fixture(scope="session")
def made_twice(hidden_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders ``a`` and ``b`` of stores of all kinds, of the same shapes and of other content; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    make_stores(folder, hidden_cluster)
    return folder


@pytest.fixture
def made(made_twice: Path) -> Path:
    """Stores of all kinds, not to be changed."""
    return made_twice / "a"


@pytest.fixture
def stores(made: Path, tmp_path: Path) -> Path:
    """Stores of all kinds, to be damaged."""
    shutil.copytree(made, tmp_path / "a")
    return tmp_path / "a"
