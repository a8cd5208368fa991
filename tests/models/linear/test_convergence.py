"""Error estimates of a fit: they agree with closed forms, and warnings appear only if a fit has not converged."""

from __future__ import annotations

import gzip
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import sklearn.exceptions
import zarr

from dpca import StreamingPCA
from dpca.engine.folds.fold import fold
from dpca.engine.sources.source import as_source
from dpca.models import ConvergenceWarning
from dpca.models.streaming.streaming_methods import RuleStream, make_rule, rule_class
from dpca.parameters.streaming import RULE_CLASSES
from dpca.partition import Whole
from dpca.rules import Constant, Harmonic, Oja
from tests.rules.streams import lost_variance, planted

Digits = tuple[np.ndarray, np.ndarray, np.ndarray]
SETTLED = [m for m in RULE_CLASSES if m != "block-power"]


def fitted(x: Any, method: Any, k: int = 3, **parameters: Any) -> tuple[StreamingPCA, list[str]]:
    """Return a fitted model and the texts of its convergence warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = StreamingPCA(k, method=method, random_state=0, **parameters).fit(x)
    return model, [str(w.message) for w in told if issubclass(w.category, ConvergenceWarning)]


@pytest.mark.parametrize("method", SETTLED)
@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_no_alarm_on_data_that_behave(method: str, scale: float) -> None:
    x = scale * planted(6000)
    model, told = fitted(x, method)
    assert told == []
    assert lost_variance(model.components_, x) < 0.02
    assert 0 < model.angle_moved_ < 0.3
    assert 0 < model.variance_moved_ < 0.02


def test_block_power_never_settles_and_says_so() -> None:
    _, told = fitted(planted(6000), "block-power", batch_size=10)
    (sentence,) = told
    assert "block-power" in sentence
    for advice in ("n_passes", "shuffle=True", "batch_size", "schedule", "incremental-svd"):
        assert advice in sentence
    assert issubclass(ConvergenceWarning, sklearn.exceptions.ConvergenceWarning)
    _, told = fitted(planted(6000), "block-power", batch_size=10, n_passes=4)
    assert told == []
    _, told = fitted(planted(6000), Oja(schedule=Constant(1.0), unit=1.0), batch_size=5)
    assert len(told) == 1


def test_the_default_on_noise_alone_with_nothing_to_spare() -> None:
    noise = np.random.default_rng(0).normal(size=(3000, 200))
    model, told = fitted(noise, "incremental-svd", k=5, oversampling=0, batch_size=20)
    assert model.captured_bound_ < 0.9
    assert len(told) == 1
    assert "a larger oversampling" in told[0]
    assert fitted(noise, "incremental-svd", k=5, oversampling=195)[1] == []


@pytest.mark.parametrize("method", ["oja-subspace", "sanger"])
def test_divergence_is_never_silent(method: str) -> None:
    literal = replace(rule_class(method)(), schedule=Harmonic(1.0), unit=1.0)
    with pytest.raises(ValueError, match="diverged.*unit"):
        StreamingPCA(3, method=literal).fit(1000 * planted(1000))


@pytest.mark.parametrize("method", ["incremental-svd", "ccipca"])
def test_after_a_second_pass_everything_is_measured(method: str) -> None:
    x = planted(2000, d=40)
    covariance = np.cov(x, rowvar=False)
    first = StreamingPCA(3, method=method, random_state=0, oversampling=2 if method == "incremental-svd" else None).fit(
        x
    )
    model, _ = fitted(x, method, n_passes=2, oversampling=2 if method == "incremental-svd" else None)
    # Rayleigh-Ritz of the first pass' components; of all directions that the default has kept.
    basis = first.components_
    if method == "incremental-svd":
        options = {"oversampling": 2, "wide": True}
        rule = make_rule(method, 3, center=True, batch_size=None, seed=0, options=options, stream=RuleStream(2000))
        basis = fold(rule, as_source(x), Whole((40,)))[0][0]["directions"]
        assert len(basis) == 5
    values, turn = (part[..., ::-1][..., :3] for part in np.linalg.eigh(basis @ covariance @ basis.T))
    known = values
    if method == "incremental-svd":
        # The components are those of C times the basis. Their eigenvalues are Rayleigh-Ritz half a step before.
        half = scipy.linalg.orth(scipy.linalg.sqrtm(covariance) @ basis.T)
        known = np.linalg.eigvalsh(half.T @ covariance @ half)[::-1][:3]
        rows = scipy.linalg.orth(covariance @ basis.T)
        assert np.linalg.norm(model.components_ @ rows) == pytest.approx(np.sqrt(3), rel=1e-9)
        assert known.sum() <= np.trace(model.components_ @ covariance @ model.components_.T) * (1 + 1e-12)
    np.testing.assert_allclose(model.explained_variance_, known, rtol=1e-8)
    ritz = turn.T @ basis
    residuals = np.linalg.norm(ritz @ covariance - values[:, None] * ritz, axis=1)
    np.testing.assert_allclose(model.residual_norms_, residuals, rtol=1e-5, atol=1e-9)
    assert model.total_variance_ == pytest.approx(np.trace(covariance), rel=1e-9)
    expected = scipy.linalg.subspace_angles(first.components_.T, model.components_.T)[0]
    assert model.angle_moved_ == pytest.approx(expected, rel=1e-4)
    best = np.linalg.eigvalsh(covariance)[::-1][:3].sum()
    true_share = known.sum() / best
    assert model.captured_bound_ <= true_share + 1e-9
    # The bound is tight if the rule records the discarded variance. Otherwise all residual variance counts.
    least = 0.9 if method == "incremental-svd" else 0.999 * values.sum() / np.trace(covariance)
    assert model.captured_bound_ > least
    assert lost_variance(model.components_, x) < lost_variance(first.components_, x)


@pytest.fixture(scope="module")
def digits(real_data: Path) -> Digits:
    """30,000 images sorted by class, their covariance and its eigenvalues, descending."""
    raw = gzip.decompress((real_data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((real_data / "mnist" / "train-labels-idx1-ubyte.gz").read_bytes())
    order = np.argsort(np.frombuffer(labels, np.uint8, offset=8), kind="stable")[::2]
    x = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)[order]
    covariance = np.cov(x.astype(np.float32), rowvar=False).astype(float)
    return x, covariance, np.linalg.eigvalsh(covariance)[::-1]


def convergence(model: StreamingPCA, digits: Digits) -> float:
    basis = np.linalg.qr(model.components_.T.astype(float))[0]
    return float(np.log10(1 - np.trace(basis.T @ digits[1] @ basis) / digits[2][: basis.shape[1]].sum()))


@pytest.mark.long
def test_shuffling_brings_back_what_sorting_costs(digits: Digits, tmp_path: Path) -> None:
    path = str(tmp_path / "digits.zarr")
    zarr.create_array(path, data=digits[0], chunks=(200, 784), compressors=None)
    method, k = "accelerated-block-power", 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_order = StreamingPCA(k, method=method, random_state=0).fit(path)
    assert -1.3 < convergence(in_order, digits) < -0.5
    shuffled, told = fitted(path, method, k=k, shuffle=True)
    at_random, _ = fitted(digits[0][np.random.default_rng(0).permutation(30_000)], method, k=k)
    assert told == []
    assert convergence(shuffled, digits) < -3.0
    assert abs(convergence(shuffled, digits) - convergence(at_random, digits)) < 0.7


@pytest.mark.long
@pytest.mark.parametrize("k", [5, 50])
def test_eigenvalues_after_a_second_pass_are_within_a_percent(digits: Digits, k: int) -> None:
    model = StreamingPCA(k, method="incremental-svd", n_passes=2).fit(digits[0])
    np.testing.assert_allclose(model.explained_variance_, digits[2][:k], rtol=0.01)


@pytest.mark.long
@pytest.mark.parametrize("k", [10, 20])
def test_a_second_pass_proves_nearly_all_that_was_captured(digits: Digits, k: int) -> None:
    """The bound of one pass leaves room of some percent; that of two little more than rounding could have cost."""
    x = digits[0][np.random.default_rng(0).permutation(30_000)]
    one, two = (StreamingPCA(k, method="incremental-svd", n_passes=n).fit(x) for n in (1, 2))
    for model in (one, two):
        assert 0 <= 10 ** convergence(model, digits) <= 1 - model.captured_bound_
    assert 1e-9 < 1 - two.explained_variance_.sum() / digits[2][:k].sum() < 1e-5
    assert 1 - one.captured_bound_ > 0.01
    assert 1 - two.captured_bound_ < 1e-4
