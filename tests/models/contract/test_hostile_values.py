"""Any finite values, through every method: finite, orthonormal components, or one sentence; nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpca import PCA, BandPCA, CellPCA, StreamingPCA
from dpca.choices import MAPPINGS
from dpca.cli import main
from dpca.engine.folds.plan import PlanError
from dpca.models.linear.pca_solvers import SOLVERS
from dpca.parameters.streaming import RULE_CLASSES
from dpca.storage import DataError
from dpca.storage.run import Run

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning"),
]
RANGE = {"data_range": (-3.0, 7.0)}
MODELS: dict[str, Callable[[], Any]] = {
    **{method: lambda m=method: StreamingPCA(1, method=m, random_state=0, batch_size=4) for method in RULE_CLASSES},
    "passes": lambda: StreamingPCA(1, n_passes=2, oversampling=0),
    "shuffled": lambda: StreamingPCA(1, method="ccipca", shuffle=True, random_state=0),
    "averaged": lambda: StreamingPCA(
        1, method="sanger", execution="averaged", n_streams=2, round_size=4, batch_size=2, random_state=0
    ),
    "data-parallel": lambda: StreamingPCA(1, method="oja", execution="data-parallel", batch_size=4, random_state=0),
    **{solver: lambda s=solver: PCA(1, solver=s, random_state=0) for solver in ("covariance", "dual")},
    # A few passes: this test does not check warnings that recommend more.
    **{s: lambda s=s: PCA(1, solver=s, n_iter=4, random_state=0) for s in SOLVERS if s not in ("covariance", "dual")},
    "least": lambda: PCA(1, solver="covariance", n_least=1),
    "cells": lambda: CellPCA(1, cell_shape=2),
    "all of cells": lambda: CellPCA(cell_shape=2),
    "overlap": lambda: CellPCA(1, cell_shape=4, overlap=2),
    "shared": lambda: CellPCA(1, cell_shape=2, shared=True),
    "threshold": lambda: CellPCA(cell_shape=2, threshold=0.9, max_components=4),
    "noise": lambda: CellPCA("marchenko-pastur", cell_shape=2),
    "mse": lambda: CellPCA(cell_shape=2, target_mse=0.01, **RANGE),
    "held out": lambda: CellPCA(cell_shape=2, target_psnr=20, validation_fraction=0.5, random_state=0, **RANGE),
    **{m: lambda m=m: BandPCA(1, band_size=4, mapping=m, n_intervals=3, random_state=0) for m in MAPPINGS},
}
LEARNED = ("components_", "mean_", "explained_variance_", "explained_variance_ratio_", "singular_values_")


def kinds(dtype: np.dtype[Any]) -> dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]]:
    """Ways to be hostile in a type."""
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return {
            "ends": lambda rng, shape: rng.choice(np.array([low, high], dtype), shape),
            "top": lambda rng, shape: np.full(shape, high, dtype) - rng.integers(0, 3, shape).astype(dtype),
        }
    info = np.finfo(dtype)
    most, least = float(info.max), float(info.smallest_subnormal)

    def giant(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        x = rng.normal(size=shape)
        x.flat[rng.integers(x.size)] = most
        return x

    return {
        "largest": lambda rng, shape: rng.choice([-most, most], shape),
        "up to a power of the largest": lambda rng, shape: rng.uniform(-0.5, 0.5, shape) * most ** rng.uniform(0.2, 1),
        "denormal": lambda rng, shape: rng.integers(-9, 10, shape) * least,
        "tiny": lambda rng, shape: rng.normal(size=shape) * float(info.tiny) ** rng.uniform(0.2, 1),
        "constant": lambda rng, shape: np.full(shape, rng.choice([0, 3, least, most, -most])),
        "giant": giant,
        "mixed": lambda rng, shape: 10 ** rng.uniform(np.log10(least) + 1, np.log10(most) - 1, shape),
    }


@st.composite
def stacks(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(["float16", "float32", "float64", "int8", "int32", "int64", "uint64"])))
    make = kinds(dtype)[draw(st.sampled_from(sorted(kinds(dtype))))]
    n, shape = draw(st.sampled_from([2, 5, 12])), draw(st.sampled_from([(4, 4), (1, 1), (5, 3)]))
    return make(np.random.default_rng(draw(st.integers(0, 2**16))), (n, *shape)).astype(dtype)


def finite_or_refused(function: Callable[[], Any]) -> Any:
    """Return the result, or None if the expected error was raised."""
    try:
        return function()
    except (DataError, PlanError) as refusal:
        if "\n" in str(refusal):
            raise AssertionError(f"more than one line: {refusal}") from refusal
        return None


def check(model: Any, x: np.ndarray) -> None:
    for name in LEARNED:
        assert np.isfinite(getattr(model, name)).all(), name
    assert np.isfinite(model.total_variance_).all()
    assert (model.explained_variance_ >= 0).all()
    rows, ranks = np.ascontiguousarray(model.components_), getattr(model, "ranks_", None)
    parts = [rows]
    if ranks is not None and not getattr(model, "overlap", 0):
        split, n = model.partition_, model.partition_.n_parts
        parts = split.split(rows, range(n), (0,) * (rows.ndim - 1), np.empty_like(rows).reshape(-1))
        parts = [part[:rank] for part, rank in zip(parts, ranks.ravel(), strict=True)]
    if not getattr(model, "overlap", 0):
        for part in parts:
            gram = part.astype(np.float64) @ part.astype(np.float64).T
            np.testing.assert_allclose(gram, np.eye(len(part)), atol=1e-5)
    scores = finite_or_refused(lambda: model.transform(x))
    if scores is not None:
        assert np.isfinite(scores).all()
        back = finite_or_refused(lambda: model.inverse_transform(scores))
        assert back is None or np.isfinite(back).all()
    if hasattr(model, "score_samples"):
        told = finite_or_refused(lambda: model.score_samples(x))
        assert told is None or np.isfinite(told).all()


@pytest.mark.cases(8)
@pytest.mark.parametrize("name", sorted(MODELS))
@given(stacks(), st.booleans())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_finite_and_orthonormal_or_one_sentence(name: str, x: np.ndarray, in_batches: bool) -> None:
    model = MODELS[name]()
    if in_batches and hasattr(model, "partial_fit"):
        for half in np.array_split(x, 2):
            if finite_or_refused(lambda part=half: model.partial_fit(part)) is None:
                return
        if finite_or_refused(lambda: getattr(model, "components_", None)) is None:
            return
    elif finite_or_refused(lambda: model.fit(x)) is None:
        return
    check(model, x)


@pytest.mark.parametrize(
    "solver", ["covariance", "dual", "randomized", "incremental-svd", "streaming covariance", "cells", "bands"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("power", [-0.45, -0.2, 0.2, 0.45, 0.6, 0.95])
def test_what_is_answered_is_right(solver: str, dtype: type, power: float) -> None:
    """Values far from 1 are either rejected, or the result is that of the same values near 1."""
    x = np.random.default_rng(0).normal(size=(40, 4, 4)) * np.linspace(1, 3, 16).reshape(4, 4)
    scale = float(np.finfo(dtype).max) ** power
    model = {
        "incremental-svd": StreamingPCA(2, method="incremental-svd"),
        "streaming covariance": StreamingPCA(2),
        "cells": CellPCA(2, cell_shape=2),
        "bands": BandPCA(2, band_size=4, mapping="raster"),
    }.get(solver) or PCA(2, solver=solver, random_state=0, n_iter=9 if solver == "randomized" else None)
    given = (x * scale).astype(dtype)
    if finite_or_refused(lambda: model.fit(given)) is None:
        assert abs(power) > 0.4
        return
    total = np.var(given.astype(np.float64).reshape(40, -1) / scale, axis=0, ddof=1).sum()
    np.testing.assert_allclose(np.sum(model.total_variance_ / scale) / scale, total, rtol=1e-4)


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        (1e160, ["--components", "2", "--cell", "4"]),
        (1e307, ["--components", "2", "--cell", "4"]),
        (1e307, ["--components", "2", "--cell", "4", "--overlap", "2"]),
        (1e307, ["--target-psnr", "30", "--band-size", "9"]),
    ],
)
def test_the_command_says_it_in_a_sentence(
    value: float, arguments: list[str], scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).choice([-value, value], (30, 8, 8))
    zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(10, 8, 8))
    command = ["fit", str(tmp_path / "x.zarr"), str(tmp_path / "m"), *arguments, "--scheduler", scheduler]
    if "--target-psnr" in arguments:
        command += ["--data-range", "0,1"]
    assert main(command) == 3
    said = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("error: ") for line in said) == 1, said
    assert not any("Traceback" in line for line in said)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("kind", ["numpy", "zarr", "dask"])
@pytest.mark.parametrize("method", ["sanger", "incremental-svd", "averaged", "cells"])
def test_a_refusal_names_the_source_wherever_it_runs(kind: str, method: str, cluster: Any, tmp_path: Path) -> None:
    import dask.array as da

    x = np.random.default_rng(0).choice([-1e300, 1e300], (60, 6, 6))
    model = {
        "cells": CellPCA(2, cell_shape=3),
        "averaged": StreamingPCA(2, method="sanger", execution="averaged", n_streams=2, round_size=20, batch_size=10),
    }.get(method) or StreamingPCA(2, method=method, batch_size=10)
    source: Any = x
    if kind == "zarr":
        source = str(tmp_path / "x.zarr")
        zarr.create_array(source, data=x, chunks=(20, 6, 6))
    if kind == "dask":
        source = da.from_array(x, chunks=(20, 6, 6))
    name = {"numpy": "the array", "dask": "the Dask array"}.get(kind, "x.zarr")
    with pytest.raises(DataError, match="divide|step") as told:
        model.fit(source, run=Run(client=cluster))  # numpy arrays are folded in this process
    assert "\n" not in str(told.value)
    assert name in str(told.value) or "diverged" in str(told.value)


@pytest.mark.parametrize("model", [PCA(2, gaps="iterate"), StreamingPCA(2, gaps="iterate")], ids=str)
def test_a_refusal_with_a_remedy_names_no_other(model: Any) -> None:
    """Neither an infinity nor missing values become ordinary by a division."""
    x = np.random.default_rng(0).normal(size=(40, 30))
    x[3, 4] = np.inf
    with pytest.raises(DataError, match="infinite") as told:
        model.fit(x)
    assert "divide" not in str(told.value)


def test_the_lazy_answer_is_refused_as_well(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (40, 6, 6)).astype(np.float32)
    model = PCA(3).fit(x)
    hostile = np.where(rng.random((20, 6, 6)) < 0.5, -3e38, 3e38).astype(np.float32)
    hostile[7] = np.sign(model.components_[0].reshape(6, 6)) * 3e38
    zarr.create_array(tmp_path / "x.zarr", data=hostile, chunks=(10, 6, 6))
    with pytest.raises(DataError, match=r"sample.\d+.*float32"):
        model.transform(str(tmp_path / "x.zarr")).compute(scheduler="threads")
    with pytest.raises(DataError, match=r"\bX\b.*float32"):
        model.transform(hostile)
    with pytest.raises(DataError, match="sample.[01].*float32"):
        # Components at 45 degrees: one attribute is 1.41 times a score.
        turned = PCA(2).fit((rng.normal(size=(40, 2)) * (3, 1) @ [[1, 1], [1, -1]]).astype(np.float32))
        turned.inverse_transform(np.float32([[3e38, 3e38], [3e38, -3e38]]))
    with pytest.raises(DataError, match="sample.1.*finite"):
        model.inverse_transform(np.array([[0, 0, 0], [0, np.nan, 0]], np.float32))


def test_a_report_is_json_that_any_program_reads() -> None:
    """What is learned goes into JSON without nan or infinity."""
    model = CellPCA(1, cell_shape=2).fit(np.full((5, 4, 4), 1e100))
    json.dumps([model.total_variance_.tolist(), model.explained_variance_ratio_.tolist()], allow_nan=False)
