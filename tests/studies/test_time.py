"""The data of the study of chapter 6: what is known of them, and that each section runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from dpca import EOF, PCA, TrajectoryPCA
from dpca.pipelines.reproduce_time import main
from dpca.pipelines.studies.time import sections
from dpca.pipelines.studies.time.elastic import network
from dpca.pipelines.studies.time.vortex import vortex_frames
from dpca.pipelines.studies.time.weather import filled, weather


def test_an_elastic_network_is_what_its_modes_say() -> None:
    net = network(8, reach=3.0)
    d = 3 * 8
    np.testing.assert_allclose(net.modes @ net.modes.T, np.eye(d - 6), atol=1e-12)
    # Modes neither shift nor turn the whole.
    modes = net.modes.reshape(-1, 8, 3)
    np.testing.assert_allclose(modes.sum(axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(np.cross(net.structure, modes).sum(axis=1), 0, atol=1e-9)
    still = net.frames(20_000, 0.7, 0.5, 1, moved=False)
    amplitudes = (still - net.structure).reshape(-1, d) @ net.modes.T
    np.testing.assert_allclose(amplitudes.var(axis=0) * net.frequencies**2 / net.temperature, 1, atol=0.1)
    # An oscillator that is damped by g turns by cos(sqrt(w^2 - g^2 / 4) t) exp(-g t / 2), and its sine.
    w, lag = np.sqrt(net.frequencies[:3] ** 2 - 0.5**2 / 4), 0.7
    wanted = np.exp(-0.25 * lag) * (np.cos(w * lag) + 0.25 / w * np.sin(w * lag))
    found = np.mean(amplitudes[1:, :3] * amplitudes[:-1, :3], axis=0) / amplitudes[:, :3].var(axis=0)
    np.testing.assert_allclose(found, wanted, atol=0.03)
    model = TrajectoryPCA(3, random_state=0).fit(net.frames(4000, 0.7, 0.5, 1))
    # Wherever the molecule is, what is left is what moves in it.
    np.testing.assert_allclose(model.explained_variance_ * net.frequencies[:3] ** 2 / net.temperature, 1, atol=0.2)
    with pytest.raises(ValueError, match="rigid"):
        network(8, reach=1.0)


def test_a_vortex_moves_on() -> None:
    frames = vortex_frames(3, 16, every=2)
    assert frames.shape == (3, 16, 16, 16)
    assert (frames >= 0).all()
    # Of two samples of one simulation the later ones are the same, however often it is looked at.
    np.testing.assert_allclose(vortex_frames(2, 16, every=4)[1], frames[2], rtol=1e-5)
    assert 0.01 < np.mean((frames[1] - frames[0]) ** 2) / np.var(frames[0]) < 2


def test_gaps_are_filled_by_straight_lines() -> None:
    gaps = weather("wind", 40, 5, 0.3)
    assert 0.1 < np.isnan(gaps).mean() < 0.5
    known = np.array([[np.nan, 1], [2, np.nan], [np.nan, np.nan], [5, np.nan], [np.nan, 4]], np.float32)
    np.testing.assert_allclose(filled(known), [[2, 1], [2, 1.75], [3.5, 2.5], [5, 3.25], [5, 4]])
    whole = filled(gaps)
    np.testing.assert_array_equal(whole[~np.isnan(gaps)], gaps[~np.isnan(gaps)])
    # As EOF fills them where it reads.
    field = xarray.DataArray(weather("temperature", 200, 20), dims=("day", "station"))
    eof = EOF(3, dim="day", gaps="interpolate", solver="covariance").fit(field)
    pca = PCA(3, solver="covariance").fit(filled(field.values))
    np.testing.assert_allclose(eof.explained_variance_, pca.explained_variance_, rtol=1e-6)
    with pytest.raises(ValueError, match="reading"):
        filled(np.full((3, 2), np.nan, np.float32))


@pytest.mark.usefixtures("small_pictures")
@pytest.mark.parametrize("name", sections.SECTIONS)
def test_sections_on_small_data(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own_frames, small = sections.ocean_frames, network(8, reach=3.0)
    monkeypatch.setattr(sections, "ocean_frames", lambda numbers, size, seed: own_frames(numbers[:60], 20, seed))
    monkeypatch.setattr(sections, "vortex_frames", lambda: vortex_frames(20, 8))
    monkeypatch.setattr(sections, "weather", lambda kind: weather(kind, 150, 40))
    monkeypatch.setattr(sections, "network", lambda *args, **options: small)
    frames = type(small).frames
    monkeypatch.setattr(type(small), "frames", lambda self, count, *rest: frames(self, min(count, 1100), *rest))
    monkeypatch.setattr(sections, "MANY", 5)
    monkeypatch.setattr(sections, "CURVE", 5)
    section: Any = sections.SECTIONS[name](1)
    assert all(len(row) == len(table.head) for table in section.tables for row in table.rows)
    assert all(picture.heading and picture.caption for picture in section.pictures.values())


def test_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sections, "network", lambda *args: network(8, reach=3.0))
    assert main(["--only", "elastic", "--output", str(tmp_path / "a.report")]) == 0
    assert "λ m ω² / kT" in capsys.readouterr().out
    assert "Equation 6.13" in (tmp_path / "a.report" / "index.html").read_text()
    assert len(json.loads((tmp_path / "a.report" / "report.json").read_text())["elastic"]["ratios"]) == 10
