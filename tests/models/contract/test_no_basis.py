"""An estimator without components goes through all that a model can: codebooks, whose scores are numbers of codes.

It tries the recipe of CONTRIBUTING.md for a representation that is no basis: nothing in the library knows of codebooks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr
from numpy.typing import DTypeLike
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import dpca
from dpca.cli import main
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import Source, as_samples, as_source, opened
from dpca.jobs import CompressionSettings, compress, fit_store, reconstruct_store, transform_store
from dpca.models.base.callbacks import FitCallbacks
from dpca.models.base.estimator import Estimator
from dpca.models.base.passes import Passes
from dpca.models.base.store import StoreContents, StoredModel, load_any
from dpca.partition import Whole
from dpca.report.record import read_report
from dpca.representation.base import Representation, array_digest
from dpca.rules.base.rule import Rule
from dpca.rules.base.state import State, StateLayout
from dpca.storage import DataError, open_stack, verify
from dpca.storage.run import Run
from dpca.storage.transaction.workspace import fingerprint_of
from tests.conftest import smooth_images

SHAPE = (14, 12, 3)
N = 60


@dataclass(frozen=True, eq=False)
class Codebooks(Representation):
    """Samples as sums of codes, one of each book: score j is the number of the code in book j (n_books, n_codes, d)."""

    sample_shape: tuple[int, ...]
    codes: np.ndarray

    scores_kind: ClassVar[str] = "code-scores"

    @property
    def score_shape(self) -> tuple[int, ...]:
        return (len(self.codes),)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.codes.dtype

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes

    def score_dtype(self, dtype: DTypeLike) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def fingerprint(self) -> str:
        return fingerprint_of("codebooks", list(self.sample_shape), array_digest(self.codes))

    def work_bytes(self, n_rows: int, dtype: DTypeLike, *, pixels: bool = False) -> int:
        return 8 * n_rows * (3 * math.prod(self.sample_shape) + self.codes.shape[1])

    def _leading(self, n_components: int) -> Self:
        return replace(self, codes=self.codes[:n_components])

    def _encode(self, samples: np.ndarray) -> np.ndarray:
        left = samples.reshape(len(samples), math.prod(self.sample_shape)).astype(np.float32)
        scores = np.empty((len(samples), len(self.codes)), np.uint8)
        for j, book in enumerate(self.codes):
            scores[:, j] = nearest(left, book)
            left -= book[scores[:, j]]
        return scores

    def _decode(self, scores: np.ndarray, pixels: Any) -> np.ndarray:
        samples = np.zeros((len(scores), self.codes.shape[2]), np.float32)
        for j, book in enumerate(self.codes):
            samples += book[scores[:, j]]
        return samples.reshape(len(scores), *self.sample_shape)


def nearest(x: np.ndarray, book: np.ndarray) -> np.ndarray:
    """Number of the code (m, d) that is nearest to each row (n, d)."""
    return ((book * book).sum(1) - 2 * x @ book.T).argmin(1)


@dataclass(frozen=True)
class Lloyd(Rule):
    """One step of k-means on what earlier books leave: the sum and the number of the samples nearest to each code."""

    before: Codebooks
    book: np.ndarray

    @property
    def mergeable(self) -> bool:
        return True

    def _layout(self, n_features: int, dtype: DTypeLike) -> StateLayout:
        return {"sums": (self.book.shape, np.float64), "members": ((len(self.book),), np.float64)}

    def _take(self, state: State, batch: np.ndarray) -> None:
        known = self.before.decode(self.before.encode(batch.reshape(-1, *self.before.sample_shape)))
        left = batch - known.reshape(batch.shape)
        code = nearest(left, self.book)
        np.add.at(state.arrays["sums"], code, left)
        np.add.at(state.arrays["members"], code, 1)
        state.counts["n_samples"] += len(batch)

    def _finish(self, state: State) -> dict[str, np.ndarray]:
        sums, members = state.arrays["sums"], state.arrays["members"][:, None]
        return {"book": np.where(members > 0, sums / np.maximum(members, 1), self.book).astype(np.float32)}


class CodebookModel(Estimator):
    """Residual vector quantization by k-means."""

    store_kind: ClassVar[str] = "codebooks"
    scores_kind: ClassVar[str] = Codebooks.scores_kind
    report_title: ClassVar[str] = "Codebooks"

    def __init__(self, n_books: int = 3, *, n_codes: int = 8, memory_budget: int | None = None) -> None:
        self.n_books = n_books
        self.n_codes = n_codes
        self.memory_budget = memory_budget

    def _fit(self, X: Any, run: Run, callbacks: FitCallbacks | None = None) -> None:
        source = as_source(opened(X))
        passes = Passes(source, run, callbacks=callbacks)
        shape, d = tuple(source.shape[1:]), math.prod(source.shape[1:])
        books = Codebooks(shape, np.zeros((0, self.n_codes, d), np.float32))
        first = np.empty((self.n_codes, *shape), source.dtype)
        source.reader()((0, self.n_codes), tuple((0, s) for s in shape), first)
        for _ in range(self.n_books):
            book = first.reshape(self.n_codes, d) - books.decode(books.encode(first)).reshape(self.n_codes, d)
            for _ in range(2):
                book = passes(Lloyd(books, book.astype(np.float32)))["book"]
            books = replace(books, codes=np.concatenate([books.codes, book[None]]))
        self.fit_report_, self.n_passes_ = passes.report, passes.count
        self._set_fitted(books, source.shape[0])

    def _set_fitted(self, books: Codebooks, n: int) -> None:
        self.codes_, self.sample_shape_, self.n_samples_seen_ = books.codes, books.sample_shape, n
        self.n_features_in_ = books.codes.shape[2]

    def _in_memory(self, X: Any) -> np.ndarray:
        return as_samples(X, "X")

    @property
    def basis_(self) -> Codebooks:
        check_is_fitted(self)
        return Codebooks(self.sample_shape_, self.codes_)

    def plan_fit(self, source: Source, axes: Sequence[str], run: Run) -> tuple[Representation, bool]:
        shape, d = tuple(source.shape[1:]), math.prod(source.shape[1:])
        books = Codebooks(shape, np.zeros((self.n_books, self.n_codes, d), np.float32))
        passes = Passes(source, run.limited_to(self.memory_budget))
        passes.plan(Whole(shape), Lloyd(books, books.codes[0]))
        return books, True

    def check_parameters_for(self, n_samples: int) -> None:
        if n_samples < self.n_codes:
            raise DataError(f"n_codes is {self.n_codes} but there are only {n_samples} samples: ask for fewer")

    def fit_description(self, axes: Sequence[str]) -> str:
        return f"{self.n_books} books of {self.n_codes} codes"

    def report_numbers(self) -> dict[str, Any]:
        return {"components": len(self.codes_), "method": "k-means", "passes": self.n_passes_, "books": self.n_books}

    def _to_store(self) -> StoreContents:
        facts = {
            "sample_shape": list(self.sample_shape_),
            "n_components": len(self.codes_),
            "n_samples_seen": self.n_samples_seen_,
            "n_codes": self.n_codes,
            "n_passes": self.n_passes_,
        }
        return StoreContents({"codes": (self.codes_, ("component", "code", "feature"))}, facts, self.store_version)

    @classmethod
    def _from_store(cls, stored: StoredModel) -> Self:
        k, m = stored.n_components, int(stored.facts["n_codes"])
        model = cls(k, n_codes=m)
        codes = stored.arrays({"codes": (k, m, math.prod(stored.sample_shape))})["codes"]
        model.n_passes_ = int(stored.facts["n_passes"])
        model._set_fitted(Codebooks(stored.sample_shape, codes), stored.n_samples)
        return model


@pytest.fixture
def images() -> np.ndarray:
    return smooth_images(N, SHAPE)


@pytest.fixture
def stack(images: np.ndarray, tmp_path: Path) -> Any:
    zarr.create_array(str(tmp_path / "stack.zarr"), data=images, chunks=(7, *SHAPE))
    return open_stack(tmp_path / "stack.zarr")


def test_it_says_when_it_is_not_fitted(images: np.ndarray, tmp_path: Path) -> None:
    model = CodebookModel()
    for use in (lambda: model.transform(images), lambda: model.save(tmp_path / "m"), lambda: model.basis_):
        with pytest.raises(NotFittedError):
            use()


def test_scores_are_numbers_of_codes_in_memory_and_lazily(images: np.ndarray, stack: Any, tmp_path: Path) -> None:
    model = CodebookModel().fit(images)
    scores = model.transform(images)
    assert (scores.shape, scores.dtype) == ((N, 3), np.uint8)
    back = model.inverse_transform(scores)
    assert (back.shape, back.dtype) == (images.shape, np.float32)
    errors = [np.square(model.inverse_transform(scores, j) - images).mean() for j in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[0] < images.var(axis=0).mean()
    for given in (da.from_array(images, chunks=(13, 4, 9, 2)), stack, tmp_path / "stack.zarr"):
        lazy = model.transform(given)
        assert (lazy.shape, lazy.dtype) == (scores.shape, np.uint8)
        np.testing.assert_array_equal(lazy.compute(scheduler="sync"), scores)
        again = model.inverse_transform(lazy)
        assert again.dtype == np.float32
        np.testing.assert_array_equal(again.compute(scheduler="sync"), back)
    np.testing.assert_array_equal(CodebookModel().fit(stack).codes_, model.codes_)


def test_values_are_checked(images: np.ndarray) -> None:
    model = CodebookModel().fit(images)
    bad = images.astype(np.float32)
    bad[3, 2, 1] = np.nan
    for use in (CodebookModel().fit, model.transform):
        with pytest.raises(DataError, match="sample.3"):
            use(bad)
    with pytest.raises(DataError, match="most"):
        model.inverse_transform(model.transform(images), 4)
    with pytest.raises(DataError, match="fitted"):
        model.transform(images[:, 1:])


def test_what_is_saved_is_loaded(images: np.ndarray, tmp_path: Path) -> None:
    fitted = CodebookModel(2, n_codes=5).fit(images)
    fitted.save(tmp_path / "m.zarr")
    for again in (CodebookModel.load(tmp_path / "m.zarr"), load_any(tmp_path / "m.zarr")):
        assert again.get_params() == fitted.get_params()
        np.testing.assert_array_equal(again.transform(images), fitted.transform(images))


def test_a_plan_knows_the_size_of_what_will_be_found(images: np.ndarray) -> None:
    basis, known = CodebookModel().plan_fit(as_source(images), ("y", "x", "channel"), Run())
    assert known
    assert basis.score_shape == CodebookModel().fit(images).basis_.score_shape
    with pytest.raises(PlanError):
        CodebookModel(memory_budget=1).plan_fit(as_source(images), ("y", "x", "channel"), Run())


def test_store_to_store(images: np.ndarray, stack: Any, tmp_path: Path, capsys: Any) -> None:
    model, scores, again = (tmp_path / name for name in ("model.zarr", "scores.zarr", "again.zarr"))
    fitted = fit_store(stack, model, CodebookModel())
    assert fitted.cost.bytes == 6 * images.nbytes
    assert fit_store(stack, model, CodebookModel()).cost.bytes == 0
    expected = fitted.model.transform(images)
    # In threads: the commands start processes, which know what dpca imports.
    assert transform_store(stack, model, scores).bytes > 0
    assert transform_store(stack, model, scores).bytes == 0
    np.testing.assert_array_equal(zarr.open(scores)["scores"][...], expected)
    assert zarr.open(scores)["scores"].dtype == np.uint8
    opened_scores = dpca.open_scores(scores, 2, model=model)
    np.testing.assert_allclose(opened_scores.scores.compute(), expected[:, :2])
    rounded = np.clip(np.rint(fitted.model.inverse_transform(expected, 2)), 0, 255)
    np.testing.assert_array_equal(opened_scores.stack().compute(), rounded)
    reconstruct_store(model, scores, again, n_components=2)
    np.testing.assert_array_equal(open_stack(again).samples[...], rounded)
    assert main(["info", str(scores)]) == 0
    assert "code-scores" in capsys.readouterr().out
    assert not any(verify(path) for path in (model, scores, again))
    with xarray.open_zarr(scores, consolidated=False) as opened_by_others:
        assert opened_by_others["scores"].dims == ("sample", "component")


@pytest.mark.usefixtures("small_pictures")
def test_a_whole_job(images: np.ndarray, stack: Any, tmp_path: Path) -> None:
    settings = CompressionSettings(CodebookModel(), reconstruct=True)
    done = compress(stack, tmp_path / "out.zarr", settings)
    assert compress(stack, tmp_path / "out.zarr", settings).already_done
    report = read_report(done.folder)
    assert report is not None
    store = zarr.open(tmp_path / "out.zarr")
    expected = clone(settings.model).fit(images).transform(images)
    np.testing.assert_array_equal(store["scores"][...], expected)
    assert report["mse"] == pytest.approx(store["mse"][...].mean())
    assert (report["components"], report["passes"], report["books"]) == (3, 6, 3)
    # Of variances and components it has nothing to say.
    assert "explained_variance_ratio" not in report
    assert report["mse_expected"] is None
    pictures = {path.stem for path in done.folder.glob("*.png")}
    assert pictures == {"comparison", "worst", "scores", "ssim_histogram"}
    other = CompressionSettings(CodebookModel(n_codes=9), reconstruct=True)
    assert compress(stack, tmp_path / "out.zarr", other, run=Run(overwrite=True)).report["mse"] != report["mse"]
