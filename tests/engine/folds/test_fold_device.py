"""The fold on an accelerator, run on torch's CPU: the results of the fold on threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpca.engine.folds.device import Device, find_device
from dpca.engine.folds.fold import fold
from dpca.engine.folds.fold_device import fold_on_device
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.source import as_source
from dpca.partition import CellGrid, LappedGrid, Whole, map_at_random
from dpca.rules import IncrementalSVD
from dpca.rules.covariance.covariance import Covariance, CovariancePCA
from dpca.rules.covariance.moments import Moments
from dpca.storage import DataError
from tests.conftest import smooth_images


@pytest.fixture
def device() -> Device:
    pytest.importorskip("torch")
    return Device("torch", "cpu", "processor")


PARTITIONS = {
    "cells": CellGrid((17, 22, 3), (5, 6)),
    "bands": map_at_random((17, 22, 3), 100, np.random.default_rng(0), together=3),
    "whole": Whole((17, 22, 3)),
}


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_covariances_are_those_of_the_other_fold(device: Device, partition: Any, dtype: type) -> None:
    images = smooth_images(150, (17, 22, 3)).astype(dtype)
    there = fold_on_device(Covariance(), as_source(images), partition, device)
    here, _ = fold(Covariance(), as_source(images), partition)
    for found, expected in zip(there, here, strict=True):
        if dtype is np.uint8:
            np.testing.assert_array_equal(found["covariance"], expected["covariance"])
        np.testing.assert_allclose(found["covariance"], expected["covariance"], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(found["mean"], expected["mean"], rtol=1e-7)


@pytest.mark.parametrize("rule", [CovariancePCA(4), Moments(), IncrementalSVD(4)], ids=lambda rule: type(rule).__name__)
def test_every_rule_of_cells_and_bands(device: Device, rule: Any) -> None:
    images = smooth_images(90, (12, 10, 3))
    partition = map_at_random((12, 10, 3), 50, np.random.default_rng(1))
    there = fold_on_device(rule, as_source(images), partition, device)
    here, _ = fold(rule, as_source(images), partition)
    for found, expected in zip(there, here, strict=True):
        assert found.keys() == expected.keys()
        for name in set(found) - {"components"}:
            assert found[name].shape == expected[name].shape
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-9)


def test_little_memory_takes_several_passes_and_gives_the_same(device: Device) -> None:
    images, grid = smooth_images(120, (30, 30, 3)), CellGrid((30, 30, 3), (7, 7))
    whole = fold_on_device(CovariancePCA(5), as_source(images), grid, device, budget=2**30)
    tight = fold_on_device(CovariancePCA(5), as_source(images), grid, device, budget=18_000_000)
    for found, expected in zip(tight, whole, strict=True):
        np.testing.assert_allclose(found["explained_variance"], expected["explained_variance"], rtol=1e-12)
    with pytest.raises(PlanError, match="smaller"):
        fold_on_device(CovariancePCA(5), as_source(images), grid, device, budget=100_000)


def test_a_value_that_is_not_finite_is_named(device: Device) -> None:
    x = np.ones((20, 6, 6), np.float32)
    x[13, 2, 2] = np.nan
    with pytest.raises(DataError, match="sample.13"):
        fold_on_device(Covariance(), as_source(x), CellGrid((6, 6), (3, 3)), device)


def test_lapped_cells_are_not_for_it(device: Device) -> None:
    images, grid = smooth_images(20, (16, 16, 3)), LappedGrid((16, 16, 3), (8, 8), 2)
    with pytest.raises(TypeError, match="overlap"):
        fold_on_device(Covariance(), as_source(images), grid, device)


class Rough(Device):
    """Keeps ten bits of the samples, as products of TF32 do."""

    def send(self, samples: Any) -> Any:
        return super().send((samples.view(np.uint32) & 0xFFFFE000).view(np.float32))


def test_products_that_are_cut_short_are_refused(device: Device) -> None:
    device.check_products()
    with pytest.raises(ValueError, match="set_float32_matmul_precision"):
        Rough("torch", "cpu", "processor").check_products()


def test_the_accelerator_of_this_machine() -> None:
    device = find_device()
    if device is None:
        pytest.skip("no accelerator here")
    images, grid = smooth_images(150, (17, 22, 3)), CellGrid((17, 22, 3), (5, 6))
    there = fold_on_device(Covariance(), as_source(images), grid, device)
    here, _ = fold(Covariance(), as_source(images), grid)
    for found, expected in zip(there, here, strict=True):
        # The sums are the same integers, but an accelerator rounds a product and a sum as one operation.
        np.testing.assert_allclose(found["covariance"], expected["covariance"], rtol=1e-15, atol=1e-12)
