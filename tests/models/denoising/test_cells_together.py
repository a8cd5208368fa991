"""Small cells are computed together. The filter of each is the same, byte by byte, as if it were alone."""

import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest

from dpca import Denoiser
from dpca.engine.sources.source import as_source
from dpca.kernels.algebra.types import Array
from dpca.models.denoising import signals
from dpca.models.denoising.filters import FilterWriter


def results_of(x: Array, writer: FilterWriter, *, from_rows: bool) -> list[dict[str, Array]]:
    """Return what the rules of `Denoiser` compute of each cell."""
    found = []
    for box in writer.grids.boxes:
        rows = x[(slice(None), *(slice(a, b) for a, b in box))].reshape(len(x), -1)
        covariance = np.atleast_2d(np.cov(rows, rowvar=False))
        found.append({"rows": rows} if from_rows else {"mean": rows.mean(axis=0), "covariance": covariance})
    return found


CASES: list[tuple[int, bool, dict[str, Any]]] = [
    *itertools.product((9, 70), (True,), ({}, {"sigma": 0.3}, {"noise": "poisson"}, {"noise": "rician"})),
    *itertools.product((70,), (False,), ({}, {"sigma": 0.3}, {"noise": "poisson"})),
    (2, True, {"sigma": 0.3}),
]


@pytest.mark.parametrize(("n", "from_rows", "given"), CASES)
def test_a_filter_does_not_depend_on_other_cells(
    monkeypatch: pytest.MonkeyPatch, n: int, from_rows: bool, given: dict[str, Any]
) -> None:
    """Cells have several sizes, ranks, and numbers of attributes that vary, and some have no noise."""
    rng = np.random.default_rng(0)
    waves = np.sin(np.arange(n)[:, None] * np.arange(1, 7) / 4) @ rng.normal(size=(6, 22 * 19))
    signal = 30 + waves.reshape(n, 22, 19) * (np.arange(19) > 8)
    x = signal + rng.normal(0, 0.3, signal.shape)
    x[:, 11:, 9:] = signal[:, 11:, 9:]
    x[:, np.hypot(*np.mgrid[:22, :19]) < 9] = 7
    _, grids, writer = Denoiser(5, **given)._settings(as_source(x))
    parts = list(range(grids.n_parts))
    with np.errstate(all="ignore"):
        together = writer.write_all(parts, results_of(x, writer, from_rows=from_rows))
        backward = writer.write_all(parts[::-1], results_of(x, writer, from_rows=from_rows)[::-1])[::-1]
        alone = [writer.write(*one) for one in zip(parts, results_of(x, writer, from_rows=from_rows), strict=True)]
        monkeypatch.setattr(signals, "_TOGETHER_BYTES", 8 * 3 * n * 25)
        few = writer.write_all(parts, results_of(x, writer, from_rows=from_rows))
    assert len({len(one["filter"]) for one in together}) > (1 if n < 4 else 3)
    for other in (backward, alone, few):
        for one, found in zip(together, other, strict=True):
            assert one["filter"].tobytes() == found["filter"].tobytes()
            assert one["level"].tobytes() == found["level"].tobytes()


def test_temporary_arrays_take_the_memory_that_is_planned() -> None:
    x = np.random.default_rng(0).normal(20, 1, (33, 40, 40, 8))
    _, grids, writer = Denoiser(4)._settings(as_source(x))
    parts, results = list(range(grids.n_parts)), results_of(x, writer, from_rows=True)
    tracemalloc.start()
    try:
        found = writer.write_all(parts, results)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - sum(array.nbytes for one in found for array in one.values()) < signals.WORK_BYTES
