"""Messages are one printable line, whatever names of files and arrays are in them."""

from __future__ import annotations

import pickle

import pytest

from dpca.models.cells.rank import UnmetError
from dpca.storage.errors import BusyError, ClusterError, DataError, PlanError, StoreError


@pytest.mark.parametrize("kind", [DataError, PlanError, StoreError, BusyError, ClusterError, UnmetError])
def test_names_of_anyone_in_messages(kind: type[Exception]) -> None:
    error = kind("'a\nb\x1b[31m\udcff\u00e9' is wrong: give another")
    assert str(error) == r"'a\nb\x1b[31m\udcffé' is wrong: give another"
    assert (type(pickle.loads(pickle.dumps(error))), str(pickle.loads(pickle.dumps(error)))) == (kind, str(error))
    long = str(kind(f"'{'n' * 60_000}' is wrong: give another"))
    assert len(long) == 1003
    assert long.startswith("'nnn")
    assert long.endswith("' is wrong: give another")
    assert str(kind("x" * 1000)) == "x" * 1000
