"""The tables of the literature: the whole command on made-up data of the same form, some numbers on the real ones."""

from __future__ import annotations

import functools
import gzip
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpca.metrics import convergence
from dpca.pipelines.reproduce_streaming import main
from dpca.pipelines.studies.data import MissingData, Setting
from dpca.pipelines.studies.reproduction import TABLES, Entry, ReproductionTable, digits, markdown, spiked
from dpca.pipelines.studies.reproduction.tables import Published
from tests.conftest import smooth_images


@pytest.mark.parametrize(
    ("entry", "verdict"),
    [
        (Entry("a", "", Published(-2.45, 0.58), (-2.0, -2.2)), "agrees within the spread"),
        (Entry("a", "", Published(-3.88, 0.07), (-3.5, -3.7)), "worse by 0.28 (2.0 times the larger spread)"),
        (Entry("a", "", Published(-3.0, 0.1), (-3.5, -3.5)), "better by 0.50 (5.0 times the larger spread)"),
        (Entry("a", "", Published(35.16), (35.164,)), "agrees"),
        (Entry("a", "", Published(35.16), (35.166,)), "worse by 0.01 (neither states a spread)"),
        (Entry("a", "", Published(0.0091, rounding=5e-2), (0.03,)), "agrees"),
        (Entry("a", "", Published(-7.4, at_most=True), (-7.56,)), "met"),
        (Entry("a", "", Published(-7.4, at_most=True), (-7.1,)), "missed by 0.30"),
        (Entry("a", "", Published(-1.0, 0.1), (-0.5,), open_points="Not said."), "worse by 0.50 (5.0 times"),
        (Entry("a", "", Published(-1.0), (), failure="it diverged"), "failed: it diverged"),
        (Entry("a", "", None, (-1.0,)), ""),
    ],
)
def test_verdicts_follow_from_the_numbers(entry: Entry, verdict: str) -> None:
    assert entry.verdict(2).startswith(verdict)
    assert ("Not said." in entry.verdict(2)) == bool(entry.open_points)


def test_a_table_is_set_with_theirs_ours_and_the_difference() -> None:
    entry = Entry("Oja", "k = 5", Published(-3.7, 0.16), (-3.5, -3.6), 1.234)
    text = markdown([ReproductionTable("t", "Title", "Convergence", "Ten trials.", (entry,))], {"lfw": "no tars"})
    assert "| Oja | k = 5 | -3.70 +- 0.16 | -3.55 +- 0.07 | +0.15 | 1.23 | agrees within the spread |" in text
    assert "* lfw: no tars" in text


def _idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(head + values.tobytes(), 1))


@pytest.fixture
def made_data(tmp_path: Path) -> Path:
    """The data folder in its published form, with fewer and duller samples."""
    data = tmp_path / "data"
    (data / "mnist").mkdir(parents=True)
    for part, n in (("train", 300), ("t10k", 60)):
        _idx(data / "mnist" / f"{part}-images-idx3-ubyte.gz", smooth_images(n, (28, 28), seed=n))
        _idx(data / "mnist" / f"{part}-labels-idx1-ubyte.gz", np.arange(n, dtype=np.uint8) % 10)
    np.savez(data / "cifar10-5085.npz", images=smooth_images(120, (12, 12, 3)), labels=np.zeros(120))
    for half in range(2):
        with tarfile.open(data / f"lfw-deepfunneled-0{half}.tar", "w") as archive:
            for i, pixels in enumerate(smooth_images(120, (16, 14, 3), seed=half)):
                file = io.BytesIO()
                Image.fromarray(pixels).save(file, "png")
                entry = tarfile.TarInfo(f"lfw/{half}/{i:03d}.png")
                entry.size = file.tell()
                file.seek(0)
                archive.addfile(entry, file)
    return data


def test_the_command_writes_every_table(
    made_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spiked, "_SAMPLES", 300)
    monkeypatch.setattr(spiked, "_ATTRIBUTES", 60)
    output = tmp_path / "tables.md"
    argv = ["--data", str(made_data), "--output", str(output), "--trials", "1"]
    assert main(argv) == 0
    numbers = json.loads(output.with_suffix(".json").read_text())
    assert list(numbers["tables"]) == list(TABLES)
    assert numbers["skipped"] == {}
    for name, table in numbers["tables"].items():
        for line in table["entries"]:
            # Rules that diverge at their own step size say so; nothing else may be without a number.
            assert line["values"] or "diverged" in line["verdict"], (name, line)
    assert len(numbers["tables"]["mnist"]["entries"]) == 10
    assert len(numbers["tables"]["spiked"]["entries"]) == 26
    assert len(numbers["tables"]["default"]["remarks"]) == 6
    text = output.read_text()
    assert text.count("\n## ") == len(TABLES)
    printed = capsys.readouterr().out
    assert "accelerated block power, 2nd strategy" in printed
    # Nothing of the stores is left behind.
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "tables.json", "tables.md"]


def test_an_lfw_table_measures_what_a_reconstruction_leaves(made_data: Path, tmp_path: Path) -> None:
    setting = Setting(made_data, tmp_path)
    table = TABLES["lfw"](setting)
    x = setting.faces().samples[...].reshape(240, -1) / 255
    _, _, best = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    for entry, k in ((table.entries[0], 5), (table.entries[1], 200)):
        left = (x - x.mean(axis=0)) - (x - x.mean(axis=0)) @ best[:k].T @ best[:k]
        assert entry.mean == pytest.approx(np.mean(left**2), rel=1e-6)
    assert all(entry.mean >= table.entries[0].mean for entry in table.entries[2:-2])
    few, many = table.entries[-2:]
    assert (few.setting, many.setting) == ("k = 200, B = 100", "k = 200, B = 1,000")
    assert few.mean > many.mean >= table.entries[1].mean  # a hundred samples do not span two hundred components
    assert "No 5 components of these photographs" in table.remarks[0]


def test_missing_data_are_named_and_the_rest_is_done(
    made_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (made_data / "mnist" / "train-images-idx3-ubyte.gz").unlink()
    argv = ["--data", str(made_data), "--output", str(tmp_path / "t.md"), "--trials", "2", "--only", "mnist", "cifar"]
    assert main(argv) == 0
    numbers = json.loads((tmp_path / "t.json").read_text())
    assert list(numbers["tables"]) == ["cifar"]
    assert {len(line["values"]) for line in numbers["tables"]["cifar"]["entries"]} == {2}
    assert "train-images-idx3-ubyte.gz" in numbers["skipped"]["mnist"]
    assert "mnist: left out" in capsys.readouterr().out
    with pytest.raises(MissingData, match="lfw"):
        Setting(tmp_path, tmp_path).faces()


def test_losses_and_block_power_of_the_real_digits(real_data: Path, tmp_path: Path) -> None:
    setting = Setting(real_data, tmp_path, trials=1)
    x, labels = setting.digits("train")
    assert (x.shape, labels[:5].tolist()) == ((60_000, 784), [5, 0, 4, 1, 9])
    everything = np.concatenate([x, setting.digits("t10k")[0]])
    best = digits.exact_reference(digits.as_source(everything), 20)
    for k, loss in ((5, 35.16), (10, 26.95), (20, 18.74)):
        assert round(digits._loss(-np.inf, best.first(k)), 2) == loss
    only: Any = functools.partial(digits.thesis_rules, 5)
    found = [one for one in only() if one[0] == "block power"]
    reference = digits.exact_reference(digits.as_source(x), 5)
    make = digits.in_batches(found[0][1])
    (stream,) = digits.shuffled(x, reference, 1)
    entry = digits.entry("block power", "", make, [stream], value_range=digits.PIXELS)
    assert entry.mean == pytest.approx(-1.09, abs=0.05)
    assert reference.convergence([best.components[:5]])[0] == pytest.approx(
        convergence(best.components[:5], reference.components, covariance=reference.covariance)
    )
