"""Samples drawn out of a stream, and the estimate from them, against closed forms and real images."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.rules.base.state import State
from dpca.rules.certificates.sampled import Sampled, estimate
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from tests.rules.streams import planted

RULE = Sampled(IncrementalSVD(2, 3))


def numbered(n: int, d: int = 5) -> np.ndarray:
    """Samples that are told apart by their first attribute."""
    x = np.random.default_rng(n).normal(size=(n, d))
    x[:, 0] = np.arange(n)
    return x


def taken(x: np.ndarray, rows: int, rule: Sampled = RULE) -> State:
    state = rule.init(x.shape[1], x.dtype)
    for start in range(0, len(x), rows):
        rule.update(state, x[start : start + rows])
    return state


def held(state: State) -> tuple[np.ndarray, np.ndarray]:
    """Keys in use, and the numbers of their samples."""
    keys = state.arrays["sampled_keys"]
    return keys[keys > 0], state.arrays["sampled_rows"][keys > 0, 0].astype(int)


@given(st.lists(st.integers(0, 700), min_size=1, max_size=4), st.integers(1, 900))
@settings(deadline=None, max_examples=20)
def test_the_largest_keys_of_all_parts_are_kept(lengths: list[int], rows: int) -> None:
    x, states = numbered(sum(lengths)), []
    for stop, length in zip(np.cumsum(lengths), lengths, strict=True):
        states.append(taken(x[stop - length : stop], rows))
    known = np.concatenate([held(state)[0] for state in states])
    state = states[0]
    for other in states[1:]:
        before = other.copy()
        state = RULE.merge(state, other)
        for name in other.arrays:
            np.testing.assert_array_equal(other.arrays[name], before.arrays[name])
    keys, numbers = held(state)
    np.testing.assert_array_equal(state.arrays["sampled_keys"][-len(keys) or 512 :], keys)
    assert len(keys) == min(len(x), 512)
    np.testing.assert_array_equal(np.sort(keys), np.sort(known)[::-1][:512][::-1])
    assert len(set(numbers)) == len(numbers)
    for key, number in zip(keys, numbers, strict=True):
        at = np.flatnonzero(state.arrays["sampled_keys"] == key)[0]
        np.testing.assert_array_equal(state.arrays["sampled_rows"][at], x[number])


def test_all_samples_are_drawn_alike() -> None:
    """Of 30 streams, in two parts each, the earlier and the later half, whatever the batches."""
    shares = []
    for seed in range(30):
        x = numbered(2048)
        x[:, 1] += seed
        state = RULE.merge(taken(x[:1536], 300), taken(x[1536:], 64))
        shares.append(np.bincount(held(state)[1] // 512, minlength=4) / 512)
    np.testing.assert_allclose(np.mean(shares, axis=0), 0.25, atol=4 * np.sqrt(0.25 * 0.75 / 512 / 30))


def test_memory_is_bounded() -> None:
    for d, dtype, most in ((10, np.float64, 512), (2**20, np.uint8, 512), (2**24, np.float32, 512)):
        n = RULE._own_layout(d, dtype)["sampled_rows"][0][0]
        assert 0 <= n <= most
        size = n * d * np.dtype(dtype).itemsize
        assert size <= max(2**25, RULE.rule.state_bytes(d, dtype) // 4)
        assert n == most or size + d * np.dtype(dtype).itemsize > 2**25


def second_order(x: np.ndarray, directions: np.ndarray, variances: np.ndarray, k: int, m: int) -> float:
    """The sum that `estimate` estimates, from all samples."""
    c = np.cov(x, rowvar=False)
    d = x.shape[1]
    missed = 0.0
    apart = np.eye(d) - directions.T @ directions
    for i in range(k):
        for value, square in [
            *((variances[j], (directions[i] @ c @ directions[j]) ** 2) for j in range(k, len(directions))),
            (variances[-1], float(np.sum((apart @ c @ directions[i]) ** 2))),
        ]:
            missed += square / np.sqrt((variances[i] - value) ** 2 + 4 / m * variances[i] * value)
    return missed


@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_the_estimate_has_no_bias(k: int, further: int, seed: int) -> None:
    """Its mean over all samples of six out of nine is the closed form; and of all nine it is that itself."""
    rng = np.random.default_rng(seed)
    d, q = 7, k + further
    x = rng.normal(size=(9, d)) * np.linspace(2, 1, d)
    x -= x.mean(axis=0)
    directions = np.linalg.qr(rng.normal(size=(d, q)))[0].T
    variances = np.linspace(3, 1, q)
    captured, mean = variances[:k].sum(), 10 * rng.normal(size=d)
    for m in (6, 9):
        found = [
            captured / estimate((x + mean)[list(some)], mean, directions, variances, k, 9)[0] - captured
            for some in itertools.combinations(range(9), m)
        ]
        np.testing.assert_allclose(np.mean(found), second_order(x, directions, variances, k, m), rtol=1e-8)


@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 4), st.sampled_from([0.0, 1e-150, 1e30, 1e100]))
@settings(deadline=None, max_examples=40)
def test_the_estimate_lies_between_what_is_proved_and_one(n: int, k: int, oversampling: int, scale: float) -> None:
    rule = Sampled(IncrementalSVD(k, oversampling))
    x = scale * np.random.default_rng(n).normal(size=(n, 9)) * 0.7 ** np.arange(9)
    found = rule.finish(taken(x, 40, rule))
    share, error, bound = (
        float(found[name]) for name in ("captured_estimate", "captured_estimate_error", "captured_bound")
    )
    assert "directions" not in found
    if n < 30:
        assert np.isnan([share, error]).all()
    else:
        assert bound <= share <= 1
        assert 0 <= error <= 1 - bound


def truth(x: np.ndarray, components: np.ndarray) -> float:
    covariance = np.cov(x, rowvar=False)
    best = np.linalg.eigvalsh(covariance)[::-1][: len(components)].sum()
    return float(np.trace(components @ covariance @ components.T) / best)


@pytest.mark.long
@pytest.mark.parametrize("oversampling", [2, 10])
def test_two_standard_errors_reach_the_truth(oversampling: int) -> None:
    """Of fits that missed much and little, in 38 of 40 streams."""
    reached = []
    for seed in range(40):
        x = planted(1500, seed=seed)
        x = x[np.argsort(x[:, 0] + np.random.default_rng(seed).normal(size=1500))]
        rule = Sampled(IncrementalSVD(3, oversampling))
        found = rule.finish(taken(x, 20, rule))
        apart = abs(float(found["captured_estimate"]) - truth(x, found["components"]))
        reached.append(apart <= 2 * float(found["captured_estimate_error"]) + 1e-12)
    assert np.mean(reached) >= 0.95


@pytest.mark.long
@pytest.mark.parametrize(("k", "is_sorted"), [(5, False), (50, True)])
def test_of_digits_too(real_data: Path, k: int, is_sorted: bool) -> None:
    raw = gzip.decompress((real_data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((real_data / "mnist" / "train-labels-idx1-ubyte.gz").read_bytes())
    x = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)[:20_000]
    if is_sorted:
        x = x[np.argsort(np.frombuffer(labels, np.uint8, offset=8)[:20_000], kind="stable")]
    rule = Sampled(IncrementalSVD(k))
    found = rule.finish(taken(x, 1024, rule))
    share, error = float(found["captured_estimate"]), float(found["captured_estimate_error"])
    assert abs(share - truth(x.astype(np.float32), found["components"].astype(float))) <= 2 * error
    assert error < 0.01 < 1 - found["captured_bound"]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_the_estimate_of_bytes_is_that_of_the_same_floats(dtype: str) -> None:
    """400 of 512 rows of 2,500 attributes, and 100 directions, from which exact products take less time."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((512, 150)) * np.linspace(30, 5, 150) @ np.linalg.qr(rng.standard_normal((2500, 150)))[0].T
    x = np.clip(np.rint(x + 4 * rng.standard_normal(x.shape)), -120, 120) + (128 if dtype == "uint8" else 0)
    centered = x - x.mean(axis=0)
    _, values, directions = np.linalg.svd(centered, full_matrices=False)
    # Turned a little, so that there is something to miss.
    turn = np.linalg.qr(np.eye(100) + 0.05 * rng.standard_normal((100, 100)))[0]
    given = x.mean(axis=0), (turn @ directions[:100]).astype(np.float32), values[:100] ** 2 / 511
    share, error = estimate(x[:400].astype(dtype), *given, 40, 512)
    expected, expected_error = estimate(x[:400], *given, 40, 512)
    assert 0.5 < expected < 0.9999
    np.testing.assert_allclose([share, error], [expected, expected_error], rtol=1e-5)
