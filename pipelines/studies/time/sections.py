"""The sections of the study's page: simulations, weather, a molecule, and the explained variance of partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from dpca.kernels.algebra.types import Array
from dpca.models.cells.band_pca import BandPCA
from dpca.models.cells.cell_pca import CellPCA
from dpca.models.linear.pca import PCA
from dpca.models.linear.trajectory_pca import TrajectoryPCA
from dpca.pipelines.studies.runner import Picture, Section
from dpca.pipelines.studies.time.elastic import network
from dpca.pipelines.studies.time.ocean import ocean_frames
from dpca.pipelines.studies.time.plots import functions_and_spectra
from dpca.pipelines.studies.time.report import HOLISTIC, MAPPINGS, explained_curve
from dpca.pipelines.studies.time.tables import (
    MOLECULE,
    OCEAN,
    VORTEX,
    WEATHER,
    both_orders,
    explained,
    numbers_of,
    on_page,
    rankings,
    value_range,
)
from dpca.pipelines.studies.time.vortex import vortex_frames
from dpca.pipelines.studies.time.weather import filled, weather
from dpca.plots import explained_variance
from dpca.report.page import DataTable
from dpca.timeseries import spectrum

#: Shares of the ocean to reach, read from the curves of figure 6.12 at 4 components.
_REQUIRED = {"cells": 0.98, "bands by mean and variance": 0.93, "bands at random": 0.83, HOLISTIC: 0.82}

#: Components of table 6.1 and figure 6.8, and of figure 6.12.
MANY, CURVE = 30, 20
# Distance of neighboring alpha carbons.
_ANGSTROM = np.float32(3.8)


def simulations_section(trials: int) -> Section:
    """Table 6.4: five modes of ocean waves and of a vortex, ten rules in the order of time and shuffled."""
    data = {"ocean": (ocean_frames(np.arange(300), 100, 0), OCEAN), "vortex": (vortex_frames(), VORTEX)}
    columns = {}
    for name, (frames, theirs) in data.items():
        x = frames.reshape(len(frames), -1)
        columns[name] = both_orders(x, 5, 10, trials, theirs, value_range=value_range(x))
    notes = [
        f"Convergence, log10(1 - captured / best), after one pass; {trials} trials. Ours are an ocean of Tessendorf "
        "(300 frames of 100 x 100) and a pseudo-spectral vortex (99 frames of 32 x 32 x 32), because the data of the "
        "thesis are not free, in batches of 10 instead of 5: compare the ranks of the rules, not the digits.",
        *rankings(columns),
        "The step size of similarity matching and the reading of accelerated rules are as in the study of streaming "
        "rules; the thesis does not state the order of its samples. The default keeps 60 more directions than the "
        "requested components.",
    ]
    table = on_page("Table 6.4: simulations, first five modes", columns, notes, "{:.2f}".format)
    return Section([table], numbers={"simulations": numbers_of(columns)})


def weather_section(trials: int) -> Section:
    """Table 6.2 and figure 6.8: stations with gaps that are filled."""
    columns, curves = {}, {}
    for kind, theirs in WEATHER.items():
        x = filled(weather(kind))
        columns[kind] = both_orders(x, 10, 100, trials, theirs, value_range=value_range(x))
        models: dict[str, Any] = {HOLISTIC: PCA(MANY, solver="covariance")}
        models |= {f"bands {words}": _bands(MANY, min(100, x.shape[1]), mapping) for mapping, words in MAPPINGS.items()}
        curves[kind] = _curves(models, x)
    notes = [
        f"Convergence after one pass in batches of 100; {trials} trials. Our readings are synthetic: 3,653 days of 600 "
        "stations. 10 % of the readings, in runs of 5 days, are missing and interpolated linearly.",
        *rankings(columns),
    ]
    table = on_page("Table 6.2: weather stations, first ten modes", columns, notes, "{:.2f}".format)
    caption = "Components of all stations, and of bands of 100 stations. Bands need no map of the stations."
    pictures = {
        f"weather_{kind}": Picture(explained_variance(lines, emphasized=HOLISTIC), f"Figure 6.8: {kind}", caption)
        for kind, lines in curves.items()
    }
    return Section([table], pictures, {"weather": numbers_of(columns), "weather_curves": curves})


def molecule_section(trials: int) -> Section:
    """Table 6.1 and figure 6.4: thirty components of a trajectory."""
    net = network(120, reach=1.8)
    frames = _ANGSTROM * net.frames(5000, math.pi / (2 * net.frequencies[MANY]), 0.2, 0)
    model = TrajectoryPCA(MANY, random_state=0).fit(frames)
    rows = model.aligned(frames).reshape(len(frames), -1)
    columns = {"variance explained": both_orders(rows, MANY, 100, trials, MOLECULE, measure=explained)}
    notes = [
        f"Share of the variance that {MANY} components explain after one pass in batches of 100; {trials} trials; the "
        f"best explain {model.explained_variance_ratio_.sum():.1%}. Ours is an elastic network of 120 atoms in a heat "
        "bath, 5,000 frames, superposed on their mean; the thesis's has 50,796 atoms and 50,000 frames.",
    ]
    table = on_page("Table 6.1: a molecule, 30 components", columns, notes, "{:.1%}".format)
    models: dict[str, Any] = {HOLISTIC: PCA(MANY)}
    models |= {f"random bands of {n}": _bands(MANY, min(n, rows.shape[1]), "random") for n in (60, 120, 180)}
    curves = _curves(models, rows)
    caption = "Bands of coordinates at random: larger bands are closer to whole samples."
    picture = Picture(explained_variance(curves, emphasized=HOLISTIC), "Figure 6.4", caption)
    return Section([table], {"molecule": picture}, {"molecule": numbers_of(columns), "molecule_curves": curves})


def elastic_section(trials: int) -> Section:
    """Equation 6.13: variances and spectra of an elastic network with known modes, k T / (m omega^2)."""
    k, net = 10, network(20)
    w = net.frequencies[:k]
    step = math.pi / (2 * w[-1])
    frames = net.frames(40_000, step, 0.2, 0)
    model = TrajectoryPCA(k, random_state=0).fit(frames)
    ratios = model.explained_variance_ * w**2 / net.temperature
    turned = Rotation.align_vectors(model.reference_, net.structure)[0].apply(net.modes[:k].reshape(-1, 3))
    overlap = model.components_ @ turned.reshape(k, -1).T
    scores = model.transform(frames)
    found = spectrum(scores, model=model, time=step, segment=1024)
    peaks = 2 * np.pi * found.peaks
    rmsip = float(np.sqrt((overlap**2).sum() / k))
    lines = [
        (str(i + 1), f"{w[i]:.3f}", f"{ratios[i]:.3f}", f"{peaks[i]:.3f}", f"{peaks[i] / w[i] - 1:+.1%}")
        for i in range(k)
    ]
    note = (
        f"20 atoms, 40,000 frames, turned and shifted at random, superposed on their mean. λ m ω² / kT is "
        f"{ratios.min():.3f} to {ratios.max():.3f}; the root mean squared inner product of {k} components and {k} "
        f"normal modes is {rmsip:.4f}; peaks lie within {np.abs(peaks / w - 1).max():.1%}."
    )
    head = ("mode", "ω", "λ m ω² / kT", "peak of the spectrum", "off")
    figure = functions_and_spectra(
        step * np.arange(400),
        scores[:400],
        found.frequencies,
        found.power,
        shares=model.explained_variance_ratio_,
        unit="1/ω₁",
    )
    caption = "The first 400 frames, and the spectra of all."
    return Section(
        [DataTable("Equation 6.13: an elastic network in a heat bath", head, lines, [note])],
        {"elastic": Picture(figure, "An elastic network: time series", caption)},
        {"elastic": {"ratios": ratios, "rmsip": rmsip, "peaks": peaks, "frequencies": w}},
    )


def partitions_section(trials: int) -> Section:
    """Figure 6.12: cells, bands and whole samples of ocean waves and of a vortex."""
    pictures, numbers, lines = {}, {}, []
    data = {"ocean": (ocean_frames(np.arange(300), 100, 0), 10, 100), "vortex": (vortex_frames(), 3, 27)}
    for name, (frames, cell, band) in data.items():
        models = {
            "cells": CellPCA(CURVE, cell_shape=cell),
            "bands by mean and variance": _bands(CURVE, band, "mean-variance"),
            "bands at random": _bands(CURVE, band, "random"),
            HOLISTIC: PCA(CURVE),
        }
        curves = _curves(models, frames)
        pictures[f"partitions_{name}"] = Picture(
            explained_variance(curves, emphasized=HOLISTIC),
            f"Figure 6.12: {name}",
            f"Cells of {cell} along each axis and bands of {band} attributes beside whole samples.",
        )
        numbers[name] = curves
        lines += [
            (f"{name}, {kind}", f"{curve[3]:.3f}", f"{_REQUIRED[kind]:.2f}" if name == "ocean" else "-")
            for kind, curve in curves.items()
        ]
    table = DataTable("Figure 6.12: share of the variance by 4 components", ("", "ours", "required"), lines)
    return Section([table], pictures, {"partitions": numbers})


def _bands(k: int, size: int, mapping: str) -> BandPCA:
    return BandPCA(k, band_size=size, mapping=mapping, random_state=0)


def _curves(models: Mapping[str, Any], x: Array) -> dict[str, Array]:
    return {name: explained_curve(model.fit(x)) for name, model in models.items()}


SECTIONS = {
    "simulations": simulations_section,
    "partitions": partitions_section,
    "weather": weather_section,
    "molecule": molecule_section,
    "elastic": elastic_section,
}
"""Name of each section -> function of the number of trials that computes it."""
