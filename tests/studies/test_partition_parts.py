"""The parts of a partition report by themselves: what is compared, cosine bases, signs and angles, tables, claims."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from dpca import BandPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.partition import CellGrid
from dpca.pipelines.studies.partitions.analogy import Analogy, angles_between, combined
from dpca.pipelines.studies.partitions.block_dct import dct_basis
from dpca.pipelines.studies.partitions.dct_moments import BlockDCTMoments
from dpca.pipelines.studies.partitions.published import PUBLISHED
from dpca.pipelines.studies.partitions.settings import PartitionSettings, design
from dpca.pipelines.studies.partitions.strategies import Training, fitting, strategies
from dpca.pipelines.studies.partitions.tables import Bound, PartitionTable, in_text
from dpca.storage.errors import DataError
from dpca.storage.run import Run
from tests.conftest import smooth_images

IMAGE = ("y", "x", "channel")


def test_the_thesis_settings_are_the_defaults_for_its_images() -> None:
    plan = design(PartitionSettings(), 13_233, (250, 250, 3), IMAGE)
    assert plan.cells == ((5, 5), (10, 10), (25, 25))
    assert plan.components == (5, 20, 125)
    assert (plan.holistic, plan.band_size, plan.band_components) == (200, 1875, 125)
    assert plan.estimating == (100, 1000)
    assert (plan.n_held_out, plan.n_training, plan.middle) == (0, 13_233, 1)
    names = [strategy.name for strategy in strategies(PartitionSettings(), plan)]
    assert len(set(names)) == len(names) == 3 + 1 + 2 + 6 + 1 + 12
    # Every published number has a line to stand beside.
    assert all(numbers.keys() <= set(names) for numbers in PUBLISHED.values())
    assert PUBLISHED["none"] == {}


@pytest.mark.parametrize(
    ("n", "shape", "axes", "settings", "expected"),
    [
        (100, (40, 36), ("y", "x"), {}, {"cells": ((5, 5), (10, 10), (25, 25)), "components": (1, 6, 24)}),
        (100, (8, 9, 10), ("z", "y", "x"), {}, {"cells": ((3, 3, 3), (5, 5, 5), (8, 9, 9)), "band_size": 180}),
        (40, (720,), ("feature",), {}, {"cells": ((25,), (100,), (625,)), "components": (1, 6, 24), "holistic": 39}),
        # An axis that calls itself channels and is all there is.
        (40, (64,), ("channel",), {}, {"cells": ((25,), (64,)), "has_channels": False}),
        (5, (3, 2), ("y", "x"), {}, {"cells": ((3, 2),), "band_size": 1, "holistic": 4, "estimating": ()}),
        (9, (1, 1, 3), IMAGE, {}, {"cells": ((1, 1),), "band_size": 3, "components": (1,)}),
        (99, (30, 30, 3), IMAGE, {"cells": (12, (5, 30)), "ratio": 4.0}, {"cells": ((12, 12), (5, 30))}),
        (50, (9, 9), ("y", "x"), {"train_fraction": 0.8}, {"n_held_out": 10, "holistic": 39}),
        (50, (9, 9), ("y", "x"), {"estimating": (40, 10, 10, 60)}, {"estimating": (10, 40)}),
    ],
)
def test_other_stacks_get_what_fits_them(
    n: int, shape: tuple[int, ...], axes: tuple[str, ...], settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    plan = design(PartitionSettings(**settings), n, shape, axes)
    assert {name: getattr(plan, name) for name in expected} == expected


@given(
    shape=st.tuples(st.integers(5, 60), st.integers(5, 60)),
    cell=st.integers(1, 30),
    channels=st.sampled_from([1, 3]),
    ratio=st.floats(1, 40),
    n=st.integers(2, 3000),
)
def test_as_many_components_as_the_ratio_allows(
    shape: tuple[int, int], cell: int, channels: int, ratio: float, n: int
) -> None:
    plan = design(PartitionSettings(cells=(cell,), ratio=ratio), n, (*shape, channels), IMAGE)
    grid = CellGrid((*shape, channels), plan.cells[0])
    sizes = [grid.n_features(i) for i in range(grid.n_parts)]
    (k,) = plan.components
    budget = math.prod(shape) * channels / ratio
    assert k == 1 or sum(min(k, size) for size in sizes) <= budget
    assert k >= min(n, max(sizes)) or sum(min(k + 1, size) for size in sizes) > budget


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ratio": 0.5}, "ratio is 0.5"),
        ({"train_fraction": 1.0}, "train_fraction is 1.0"),
        ({"train_fraction": 0.01}, "leave 0 to fit and 20 to hold out"),
        ({"estimating": (1,)}, "at least 2 samples"),
        ({"evaluate": 0}, "evaluate is 0"),
        ({"holistic": 21}, "only 20 samples"),
        ({"compare": "mnist"}, "compare is 'mnist'"),
        ({"cells": ((5, 5, 5),)}, r"a cell of \(5, 5, 5\) does not fit samples of \(40, 36\)"),
        ({"cells": (0,)}, r"a cell of \(0, 0\)"),
    ],
)
def test_settings_that_make_no_sense_are_one_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        design(PartitionSettings(**settings), 20, (40, 36, 3), IMAGE)


@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("chosen", [False, True])
def test_coefficients_that_are_kept_are_those_of_scipy(chosen: bool, across: bool) -> None:
    x = smooth_images(80, (13, 12, 3)).astype(np.float64)
    grid, k = CellGrid((13, 12, 3), (5, 4)), 7
    rule = BlockDCTMoments((13, 12, 3), (5, 4), across)
    found = rule.finish(rule.update(rule.init(468, x.dtype), x.reshape(80, -1)))
    moments = {name: values.reshape(13, 12, 3) for name, values in found.items()}
    basis, held = dct_basis(grid, moments, k, chosen, across)
    np.testing.assert_allclose(basis.mean, x.mean(axis=0), atol=1e-9)
    rebuilt = basis.decode(basis.encode(x))
    by_hand, kept_variance = np.empty_like(x), 0.0
    axes = (1, 2, 3) if across else (1, 2)
    for i in range(grid.n_parts):
        where = (slice(None), *(slice(a, b) for a, b in grid.region(i)))
        centered = x[where] - x[where].mean(axis=0)
        coefficients = scipy.fft.dctn(centered, axes=axes, norm="ortho").reshape(80, -1)
        variances = coefficients.var(axis=0, ddof=1)
        if chosen:
            kept = np.argsort(-variances)[:k]
        else:
            # Diagonals y + x = 0, 1, 2, each with its three channels: 3 + 4 of the 6 on the second.
            w = where[2].stop - where[2].start
            kept = np.array([0, 1, 2, 3, 4, 5, 3 * w])
        coefficients[:, np.setdiff1d(np.arange(coefficients.shape[1]), kept)] = 0
        kept_variance += variances[kept].sum()
        shape = centered.shape
        by_hand[where] = scipy.fft.idctn(coefficients.reshape(shape), axes=axes, norm="ortho") + x[where].mean(axis=0)
    np.testing.assert_allclose(rebuilt, by_hand, atol=1e-3)
    assert held.sum() == pytest.approx(kept_variance, rel=1e-6)
    # What is left is the variance of the others.
    left = (x.var(axis=0, ddof=1).sum() - held.sum()) * 79 / 80 / 468
    assert np.mean((x - by_hand) ** 2) == pytest.approx(left, rel=1e-6)


def test_a_best_set_leaves_no_more_than_low_frequencies() -> None:
    x = np.random.default_rng(0).normal(size=(50, 8, 8)) * np.random.default_rng(1).uniform(size=(8, 8))
    rule = BlockDCTMoments((8, 8), (4, 4))
    found = rule.finish(rule.update(rule.init(64, x.dtype), x.reshape(50, -1)))
    moments = {name: values.reshape(8, 8) for name, values in found.items()}
    held = [dct_basis(CellGrid((8, 8), (4, 4)), moments, 3, chosen, False)[1].sum() for chosen in (False, True)]
    assert held[1] > held[0]


def test_bands_are_combined_with_the_signs_of_their_scores() -> None:
    rng = np.random.default_rng(0)
    d, k = 600, 3
    loadings = scipy.linalg.orth(rng.normal(size=(d, k))).T
    x = (rng.normal(size=(500, k)) * [9, 5, 3]) @ loadings + 0.05 * rng.normal(size=(500, d))
    model = BandPCA(k, band_size=100, mapping="random", random_state=0).fit(x)
    rows = combined(model.basis_, x, k)
    np.testing.assert_allclose(rows @ rows.T, np.eye(k), atol=1e-9)
    best = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][:k]
    # Loadings at random are alike in every band, so that the combined vectors are the components.
    assert (np.abs(np.einsum("ij,ij->i", rows, best)) > 0.95).all()
    # Signs turned over in some bands change nothing but the sign of the whole.
    flipped = model.components_ * np.where(model.bands_.labels % 2, -1, 1)
    again = combined(type(model.basis_)(model.bands_, model.mean_, flipped), x, k)
    np.testing.assert_allclose(np.abs(np.einsum("ij,ij->i", rows, again)), 1, atol=1e-9)
    angles = angles_between(rows, best, (1, 2, 3, 4))
    assert list(angles) == [1, 2, 3]
    wanted = np.degrees(scipy.linalg.subspace_angles(rows.T, best.T))
    np.testing.assert_allclose(angles[3], sorted(wanted), rtol=1e-6)
    assert angles[3][2] < 20


def test_a_band_without_variance_is_combined_without_noise() -> None:
    x = np.zeros((20, 12))
    x[:, :6] = np.random.default_rng(0).normal(size=(20, 6))
    model = BandPCA(2, band_size=6, mapping="raster").fit(x)
    assert np.isfinite(combined(model.basis_, x, 5)).all()


def test_points_apart() -> None:
    analogy = Analogy((0.3, 0.5, 0.6), {"bands at random": (0.31, 0.515)}, (0.29,), {1: (1.0, 1.0, 1.0)})
    assert analogy.apart("bands at random") == pytest.approx(1.5)
    assert analogy.as_dict()["largest_difference_points"] == {"bands at random": pytest.approx(1.5)}


def test_a_table_shows_the_columns_that_have_values() -> None:
    lines: tuple[tuple[str, dict[str, Any]], ...] = (
        ("cells", {"components": 1200, "mse": 0.000961, "ssim": None, "theirs_cpu": 0.16, "scalars_ratio": 15.0}),
        ("holistic", {"components": 5, "mse": Bound(0.0123, "at most"), "theirs_cpu": "hours", "ssim": None}),
    )
    table = PartitionTable("4.1", "A first example", "Of all.", "", lines, ("Told.",))
    page = table.on_page()
    assert list(page.head) == ["", "k", "scalars", "MSE", "theirs: CPU s a cell"]
    assert list(page.rows) == [
        ("cells", "1,200", "15.0:1", "0.000961", "0.16"),
        ("holistic", "5", "-", "at most 0.01230", "hours"),
    ]
    assert list(page.notes) == ["Of all.", "Told."]
    assert "* Told." in in_text([table])
    plain = table.as_dict()
    assert plain["lines"][1] == {
        "name": "holistic",
        "components": 5,
        "mse": 0.0123,
        "mse_is": "at most",
        "theirs_cpu": "hours",
    }


def test_components_of_whole_samples_follow_the_memory_unless_they_are_asked_for() -> None:
    training = Training(as_source(np.zeros((400, 200, 100), np.uint8)), 400, 20_000, 255.0, Run())

    def fitted(room: int, **settings: Any) -> int:
        asked = PartitionSettings(**settings)
        plan = design(asked, 400, (200, 100), ("y", "x"))
        return fitting(plan, asked, replace(training, run=Run(memory=room))).holistic

    found = [fitted(megabytes * 10**6) for megabytes in (300, 160, 130, 115)]
    assert found[0] == 200
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 2
    assert set(found) <= {200, 100, 50, 25, 12, 6, 3, 1}
    assert fitted(300 * 10**6, holistic=150) == 150
    # Twice as many as were found would not have fitted.
    most = found[-1]
    with pytest.raises(PlanError, match=rf"^{2 * most}\b.*--holistic"):
        fitted(115 * 10**6, holistic=2 * most)
    assert fitted(115 * 10**6, holistic=most) == most
    with pytest.raises(PlanError, match=r"^1\b"):
        fitted(10**6)
