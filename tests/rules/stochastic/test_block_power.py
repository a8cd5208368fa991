"""Block power against the power iteration that it is, its blocks counted by hand, and momentum by its recursion."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from dpca.rules.stochastic.block_power import BlockPower
from tests.rules.streams import fit, fold, lost_variance, planted, same_span


def test_a_block_of_all_samples_is_orthogonal_iteration() -> None:
    """Pass after pass: Alakkari 2020, section 2.2.1, with the covariance of everything."""
    x = planted(200, 8)
    x -= x.mean(0)
    rule = BlockPower(3)
    state = rule.init(8, x.dtype)
    basis = state.arrays["components"].T.copy()
    for _ in range(4):
        state = rule.update(state, x)
        q, r = np.linalg.qr(x.T @ x @ basis)
        basis = q * np.sign(r.diagonal())
        np.testing.assert_allclose(state.arrays["components"], basis.T, atol=1e-10)
    found = rule.finish(state)
    assert lost_variance(found["components"], x) < 1e-4
    projected = np.linalg.eigvalsh(np.cov(x @ basis, rowvar=False))[::-1]
    # 200 samples taken four times count as 800.
    np.testing.assert_allclose(found["explained_variance"], projected * (199 / 200) * (800 / 799), rtol=1e-4)


def test_batches_are_added_up_to_a_block() -> None:
    """Blocks of 40 in batches of 40, or of 40 and then 10s: the same basis, but for the running mean."""
    x = planted(160)
    rule = BlockPower(3, center=False)
    state = rule.init(30, x.dtype)
    for a, b in pairwise([0, 40, 50, 60, 70, 80, 110, 120, 160]):
        state = rule.update(state, x[a:b])
    expected = fold(rule, x, 40)
    assert state.counts["n_blocks"] == expected.counts["n_blocks"] == 4
    np.testing.assert_allclose(state.arrays["components"], expected.arrays["components"], atol=1e-10)


def test_a_block_is_never_shorter_than_k() -> None:
    state = fold(BlockPower(7), planted(20), 3)
    assert state.counts["first_block"] == 7
    assert state.counts["n_blocks"] == 2  # after 9 and 18 samples
    assert state.counts["n_block"] == 2


def test_an_unfinished_block_does_not_turn_the_basis() -> None:
    x = planted(130)
    a, b = fold(BlockPower(3), x[:100]), fold(BlockPower(3), x)
    np.testing.assert_array_equal(a.arrays["components"], b.arrays["components"])
    assert b.counts["n_samples"] == 130


def test_fewer_samples_than_components_are_solved_exactly() -> None:
    x = planted(5, 20)
    found = fit(BlockPower(9), x, 2)
    centered = x - x.mean(0)
    # Only the last of the running means was the final one; without centering it is exact.
    free = fit(BlockPower(9, center=False), x, 2)
    values = np.linalg.svd(x, compute_uv=False) ** 2 / 4
    np.testing.assert_allclose(free["explained_variance"], values, rtol=1e-9)
    assert same_span(free["components"], np.linalg.svd(x, full_matrices=False)[2])
    whole = fit(BlockPower(9), x)
    np.testing.assert_allclose(
        whole["explained_variance"], np.linalg.svd(centered, compute_uv=False) ** 2 / 4, atol=1e-9
    )
    assert found["components"].shape == (5, 20)


def test_growing_blocks() -> None:
    """Of 100, 150, 225, 337.5: 4 blocks close after 100, 300, 600 and 1,000 samples."""
    closed = []
    rule = BlockPower(3, growth=1.5)
    x = planted(1000)
    state = rule.init(30, x.dtype)
    for i in range(0, 1000, 100):
        before = state.counts["n_blocks"]
        state = rule.update(state, x[i : i + 100])
        if state.counts["n_blocks"] > before:
            closed.append(i + 100)
    assert closed == [100, 300, 600, 1000]


def test_growing_blocks_converge_where_constant_ones_do_not() -> None:
    x = planted(20_000)
    lost = [lost_variance(fit(BlockPower(3, growth=g), x)["components"], x) for g in (1.0, 1.2)]
    assert lost[1] < lost[0] / 5


def test_momentum_by_its_recursion() -> None:
    """W_{t+1} = C W_t - beta W_{t-1} without any scaling, whose span this is."""
    x = planted(400, 8)
    rule = BlockPower(3, momentum=0.5, center=False)
    state = rule.init(8, x.dtype)
    before, now = np.zeros((3, 8)), state.arrays["components"].copy()
    for i in range(0, 400, 100):
        block = x[i : i + 100]
        before, now = now, now @ block.T @ block / 100 - 0.5 * before
        state = rule.update(state, block)
        assert same_span(state.arrays["components"], now, 1e-9)
        assert same_span(state.arrays["components"][:1], now[:1], 1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_orthonormalizing_less_often_is_the_same(momentum: float) -> None:
    x = planted(600)
    a, b = (
        fold(BlockPower(3, momentum=momentum, orthonormalize_every=m, center=False), x).arrays["components"]
        for m in (1, 3)
    )
    np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("options", [{"growth": 0.9}, {"growth": np.nan}, {"momentum": -1.0}, {"online": True}])
def test_refused_options(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="more|online=False"):
        BlockPower(2, **options)
