"""The study of the kernel Hebbian algorithm: the whole command on made-up digits, the parts by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dpca.pipelines.reproduce_kernel import main
from dpca.pipelines.studies.kernel.courses import KernelMatrix, Variant, centered, gaussian, run, table
from dpca.pipelines.studies.kernel.mnist import errors, features


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).random((90, 4))


def test_kernels_and_errors_are_those_of_the_whole_matrix(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = np.exp(-((x[:, None] - x) ** 2).sum(axis=2) / (2 * 0.7**2))
    np.testing.assert_allclose(gaussian(x, 0.7), kernel, rtol=1e-12)
    middle = np.eye(90) - 1 / 90
    whole = middle @ kernel @ middle
    np.testing.assert_allclose(centered(kernel), whole, atol=1e-14)
    problem, rows = KernelMatrix(whole, 3), np.random.default_rng(1).normal(size=(3, 90))
    assert problem.error(rows) == pytest.approx(np.linalg.norm(whole - rows.T @ rows))
    values = np.linalg.eigvalsh(whole)
    assert problem.minimum == pytest.approx(np.linalg.norm(values[:-3]))
    assert problem.error(problem.spectrum[1] * np.sqrt(problem.spectrum[0])[:, None]) == pytest.approx(problem.minimum)
    monkeypatch.setattr("dpca.pipelines.studies.kernel.mnist._BLOCK", 40)
    some = features(x.astype(np.float32), 0.7, 90)
    np.testing.assert_allclose(some.values @ some.values.T, whole, atol=5e-3)
    first, second = some.values[:, :3], some.values[:, :1]
    expected = [np.linalg.norm(whole - f @ f.T) for f in (first, second)]
    np.testing.assert_allclose(errors(x.astype(np.float32), 0.7, [first, second]), expected, rtol=1e-4)


def test_a_course_ends_where_a_variant_diverges(x: np.ndarray) -> None:
    problem = KernelMatrix(centered(gaussian(x, 0.7)), 2)
    good, bad = (run(problem, Variant("constant", eta), 2, 3) for eta in (0.1, 1e4))
    assert good.excess.shape == (2, 3)
    assert good.median[-1] < good.median[0]
    assert np.isnan(bad.excess).all()
    assert table("", [good, bad], (1, 50), []).rows[1][4] == "2 of 2 diverged"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not there is left out; the rest is on the page, with pictures."""
    data = tmp_path / "data"
    (data / "usps").mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(400, 20)) @ rng.normal(0, 0.1, (20, 256))
    np.savez(data / "usps" / "zip_train.npz", images=images.reshape(-1, 16, 16), labels=np.arange(400) % 10)
    output = tmp_path / "kernel.report"
    argv = ["--data", str(data), "--output", str(output), "--trials", "2", "--passes", "2"]
    assert main([*argv, "--only", "usps-linear", "mnist"]) == 0
    told = capsys.readouterr()
    assert "mnist: left out" in told.out + told.err
    numbers = json.loads((output / "report.json").read_text())["usps-dot"]
    assert np.shape(numbers["excess"]["KHA/et*"]) == (2, 2)
    page = (output / "index.html").read_text()
    assert "figure 2" in page
    assert (output / "usps-dot-eigenvectors.png").stat().st_size > 1000
