"""The study of chapter 5: splits, inputs, ridge regression, tables, the command, and training where torch is."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.linear_model import Ridge

from dpca.pipelines import reproduce_rednet
from dpca.pipelines.studies.rednet import inputs as made_inputs
from dpca.pipelines.studies.rednet import ridge, sections, training, trials, whitening
from dpca.pipelines.studies.rednet.inputs import Inputs, downsampled, signs
from dpca.pipelines.studies.rednet.published import TABLE_5_1
from dpca.pipelines.studies.rednet.splits import Task, known_well, people, split
from dpca.pipelines.studies.rednet.tables import comparison, paired
from dpca.storage import DataError, StoreError
from tests.conftest import smooth_images

SMALL = Task("small", 6, 2)
PERSON = np.array([f"person {i % 4}" for i in range(45)])


def faces(n: int, side: int, channels: int) -> np.ndarray:
    """Inputs that are another for each of four people, with noise."""
    random = np.random.default_rng(0)
    means = random.normal(0, 40, (4, side, side, channels))
    return (means[np.arange(n) % 4] + random.normal(0, 25, (n, side, side, channels)) + 100).astype(np.float16)


def test_a_trial_takes_so_many_photographs_of_each_person() -> None:
    names = [f"lfw/{person.replace(' ', '_')}/{i}.jpg" for i, person in enumerate(PERSON)]
    assert people(names)[5] == "person_1"
    assert known_well(PERSON, 12) == ["person 0"]
    first, again, other = (split(PERSON, SMALL, trial) for trial in (0, 0, 1))
    np.testing.assert_array_equal(first.learned, again.learned)
    assert set(first.learned) != set(other.learned)
    assert (len(first.learned), len(first.tested)) == (24, 8)
    assert not set(first.learned) & set(first.tested)
    for rows, labels in zip((first.learned, first.tested), first.labels, strict=True):
        np.testing.assert_array_equal(PERSON[rows], [f"person {label}" for label in labels])


def test_ridge_is_that_of_standardized_values_and_its_penalty_that_of_the_training_photographs() -> None:
    x, drawn = faces(45, 5, 2).reshape(45, -1).astype(np.float64), split(PERSON, SMALL, 3)
    mean, sd = x[drawn.learned].mean(axis=0), x[drawn.learned].std(axis=0)
    targets = 2.0 * (drawn.labels[0][:, None] == np.arange(4)) - 1
    z = (x[drawn.learned] - mean) / sd
    right = []
    for share in ridge.SHARES:  # each photograph left out by itself
        found = [
            Ridge(share * 50).fit(np.delete(z, i, axis=0), np.delete(targets, i, axis=0)).predict(z[[i]]).argmax()
            for i in range(len(z))
        ]
        right.append((found == drawn.labels[0]).mean())
    model = Ridge(ridge.SHARES[int(np.argmax(right))] * 50).fit(z, targets)
    guessed = model.predict((x[drawn.tested] - mean) / sd).argmax(axis=1)
    shares = ridge.accuracies(x.reshape(45, 5, 5, 2), PERSON, SMALL, 4)
    assert shares[3] == 100 * (guessed == drawn.labels[1]).mean()
    assert shares.mean() > 60
    given = Ridge(7.0).fit(z, targets).predict((x[drawn.tested] - mean) / sd).argmax(axis=1)
    shares = ridge.accuracies(x.reshape(45, 5, 5, 2), PERSON, SMALL, 4, 7.0)
    assert shares[3] == 100 * (given == drawn.labels[1]).mean()


def test_only_differences_of_two_standard_errors_are_told_apart() -> None:
    base = np.array([70.0, 75, 80, 72])
    rows = {"color": base, "better": base + np.array([3, 4, 3, 4]), "alike": base + np.array([5, -4, 3, -3])}
    table = comparison("heading", rows, {"color": (73.0, 5.78), "AlexNet": (58.98, 7.3)}, "color")
    assert [row[6] for row in table.rows] == ["", "yes", "no", ""]
    assert [row[7] for row in table.rows] == ["73.00 (5.78)", "", "", "58.98 (7.30)"]
    assert paired(rows["better"], base) == (3.5, pytest.approx(np.std([3, 4, 3, 4], ddof=1) / 2))
    assert TABLE_5_1["RedNet, own k = 3"] == (76.45, 5.7)


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    """Eight photographs of each of three people, 50 x 50, in an archive; of two of them more."""
    folder = tmp_path / "data"
    folder.mkdir()
    counts = {"Ann_A": 8, "Bob_B": 10, "Cy_C": 3, "Di_D": 9}
    pixels = iter(smooth_images(sum(counts.values()), (50, 50, 3)))
    with tarfile.open(folder / "lfw-deepfunneled-00.tar", "w") as tar:
        for person, count in counts.items():
            for i in range(count):
                file = tmp_path / "one.jpg"
                Image.fromarray(next(pixels)).save(file, quality=95)
                tar.add(file, f"lfw-deepfunneled/{person}/{person}_{i:04d}.jpg")
    return folder


def test_the_command(archives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    tasks = (Task("LFW-14", 6, 2), Task("LFW-24", 5, 3))
    for module in (made_inputs, sections):
        monkeypatch.setattr(module, "TASKS", tasks)
    monkeypatch.setattr(trials, "find_device", lambda: None)
    output = tmp_path / "out.report"
    argv = ["--data", str(archives), "--trials", "3", "--output"]
    assert reproduce_rednet.main([*argv, str(output)]) == 0
    told = capsys.readouterr()
    assert "no GPU was found" in told.out + told.err
    assert "cascade: left out" in told.out + told.err
    assert "whitening: left out" in told.out + told.err
    numbers = json.loads((output / "report.json").read_text())
    assert numbers["ridge, LFW-14, own k = 3"]["trials"] == 3
    kept = Inputs.load(output / "inputs.npz")
    assert (len(kept.person), kept.arrays["own"].shape) == (27, (27, 5, 5, 10))
    assert set(kept.person) == {"Ann_A", "Bob_B", "Di_D"}
    assert kept.arrays["color"].dtype == np.float16
    # Elsewhere, with what was kept alone.
    elsewhere = [*argv, str(tmp_path / "there.report"), "--inputs", str(output / "inputs.npz"), "--only", "ridge"]
    assert reproduce_rednet.main(elsewhere) == 0
    again = json.loads((tmp_path / "there.report" / "report.json").read_text())
    assert again["ridge, LFW-24, color"] == numbers["ridge, LFW-24, color"]
    assert "ridge, LFW-24, random k = 3" not in again
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(StoreError, match="inputs"):
        Inputs.load(tmp_path / "bad.npz")


def test_inputs_are_what_they_are_called() -> None:
    slope = np.repeat(np.add.outer(np.arange(50), 2 * np.arange(50))[..., None], 3, axis=-1).astype(np.uint8)
    color = downsampled(slope, "RGB")
    assert (color.shape, downsampled(slope, "L").shape) == ((5, 5, 3), (5, 5, 1))
    means = slope.reshape(5, 10, 5, 10, 3).mean(axis=(1, 3))
    assert np.abs(color - means)[1:-1, 1:-1].max() <= 1
    assert set(np.unique(signs((5, 5, 3)))) == {-1, 1}


def test_what_is_on_disk_counts_as_far_as_it_is_paired(tmp_path: Path) -> None:
    for i, name in enumerate(training.NETWORKS):
        for trial in range(3 if i else 2):
            file = trials.record(tmp_path, name, trial)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"accuracy": 50.0 + i}))
    found = trials.results(tmp_path, training.NETWORKS)
    assert {len(values) for values in found.values()} == {2}
    assert trials.results(tmp_path / "other", training.NETWORKS) == {}
    for content in ("{", "[]", '{"accuracy": NaN}', '{"accuracy": null}'):
        file.write_text(content)
        with pytest.raises(StoreError, match="delete"):
            trials.results(tmp_path, training.NETWORKS)
    with pytest.raises(DataError, match="device"):
        trials.chosen_device("nowhere")


def test_training_learns_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from dpca.torch import rednet

    small = [layer._replace(channels=32) for layer in rednet.CONVOLUTIONS]
    monkeypatch.setattr(rednet, "CONVOLUTIONS", small)
    monkeypatch.setattr(rednet, "FULL", (32, 16))
    values = faces(45, 25, 3)
    own = Inputs(PERSON, {"own": values, "color": values})
    networks = {name: training.NETWORKS[name] for name in ("RedNet, own k = 3, random signs", "RedNet, color")}
    lines: list[str] = []
    courses = training.courses(own, SMALL, "cpu", networks=networks, epochs=40)
    trials.run(courses, 2, tmp_path, float("inf"), lines.append)
    assert len(lines) == 4
    file = trials.record(tmp_path, "RedNet, color", 1)
    course = json.loads(file.read_text())
    assert len(course["losses"]) == 40
    assert course["losses"][-1] < 0.7 * course["losses"][0]
    assert course["accuracy"] > 60
    # Stopped before its last trial, and run again: that trial alone, and the same.
    file.unlink()
    trials.run(courses, 2, tmp_path, float("inf"), lines.append)
    assert len(lines) == 5
    again = json.loads(file.read_text())
    assert (again["losses"], again["accuracy"]) == (course["losses"], course["accuracy"])
    trials.run(courses, 3, tmp_path, 0.0, lines.append)
    assert "time is up at trial 3" in lines[-1]


def test_first_convolutions_of_patch_components(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(whitening, "LEARNED", 48)
    monkeypatch.setattr(whitening, "WIDTHS", (4, 4, 4))
    monkeypatch.setattr(whitening, "BATCH", 16)
    labels = np.arange(64) % 2
    images = np.where(labels[:, None, None, None], smooth_images(64, (16, 16, 3)), 255).astype(np.uint8)
    courses = whitening.courses(images, labels, "cpu", epochs=6)
    for name in ("whitened, frozen", "trained"):
        first, again = (courses[name](1) for _ in range(2))
        assert (first.accuracy, first.losses) == (again.accuracy, again.losses)
        assert first.losses[-1] < first.losses[0]
