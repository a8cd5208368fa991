"""A survey of samples with gaps, against least squares of each attribute, however the stream is cut."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.covariance.survey import Survey, numbered, survey_of


def surveyed(
    x: np.ndarray, groups: Any, trend: Any, weights: Any, cuts: list[int], shift: float
) -> dict[str, np.ndarray]:
    n, d = x.shape
    rule = Survey(groups, trend, weights)
    total = rule.init(d + 2, x.dtype)
    for start, stop in zip([0, *cuts], [*cuts, n], strict=True):
        batch = np.empty((stop - start, d + 2), x.dtype)
        numbered(x[start:stop] - x.dtype.type(shift), start, batch)
        if start % 2:
            total = rule.update(total, batch)
        else:
            total = rule.merge(total, rule.update(rule.init(d + 2, x.dtype), batch))
    found = rule.finish(total)
    return found | survey_of(found, groups, trend, found["empty"] == 0, np.full(d, shift), weights)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(6, 40),
    n_groups=st.integers(1, 3),
    share=st.sampled_from([0.0, 0.1, 0.6]),
    cuts=st.lists(st.integers(1, 5), max_size=4, unique=True),
    straight=st.booleans(),
    weighted=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_least_squares_and_counts(
    seed: int, n: int, n_groups: int, share: float, cuts: list[int], straight: bool, weighted: bool, dtype: Any
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(n, 5)) + 300).astype(dtype)
    x[rng.random((n, 5)) < share] = np.nan
    x[:, 4], x[:, 3] = np.nan, np.arange(n)  # land, and a place with all values
    x[2] = np.nan
    groups, trend = np.arange(n) % n_groups, np.linspace(-1, 1, n)
    weights = rng.random(n) + 0.5 if weighted else np.ones(n)
    given = weights if weighted else None
    found = surveyed(x, groups, trend if straight else None, given, sorted(cuts), 299.5)
    there = np.isfinite(x)
    np.testing.assert_array_equal(found["count"], there.sum(axis=0))
    np.testing.assert_array_equal(found["empty"], ~there.any(axis=1))
    runs = [max([len(list(run)) for gone, run in groupby(~column) if gone], default=0) for column in there.T]
    np.testing.assert_array_equal(found["run"], runs)
    used = there.any(axis=1)
    regressors = np.eye(n_groups)[groups[used]]
    if straight:
        regressors = np.concatenate([regressors, trend[used, None]], axis=1)
    tolerance = 2e-4 if dtype == np.float32 else 1e-9
    for column in range(4):
        values = x[used, column].astype(float)
        if np.isfinite(values).all():
            root = np.sqrt(weights[used])
            best = np.linalg.lstsq(regressors * root[:, None], values * root, rcond=None)[0]
            np.testing.assert_allclose(found["level"][:, column], best[:n_groups], rtol=tolerance)
            slope = best[n_groups] if straight else 0
            np.testing.assert_allclose(found["slope"][column], slope, atol=tolerance * n)
            variance = np.average((values - regressors @ best) ** 2, weights=weights[used])
            np.testing.assert_allclose(found["variance"][column], variance, atol=tolerance * n**2)
        elif np.isfinite(values).any():
            close = 0.01 if weighted else tolerance
            np.testing.assert_allclose(found["level"][:, column], np.nanmean(values), rtol=close)
            assert found["slope"][column] == 0
