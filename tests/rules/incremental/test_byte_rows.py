"""Steps of bytes by exact products against their definition in float64, and against numpy's SVD."""

from __future__ import annotations

import math
import pickle
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpca.kernels import integer_products, wide_products
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.state import State
from dpca.rules.incremental import rows as rows_of_steps
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.rules.incremental.nystrom import absorb
from dpca.rules.incremental.rows import ByteRows, exact_kernel

pytestmark = pytest.mark.skipif(integer_products.INSTRUCTION is None, reason="no dot-product instruction here")
DTYPES = ("uint8", "int8", "bool")


def bytes_of(dtype: str, n: int, d: int, rng: np.random.Generator, dark: bool = False) -> np.ndarray:
    """Samples with a few strong directions, a drift of the mean, and noise; dark ones are near the least value."""
    strong = (rng.normal(size=(n, 8)) * 0.8 ** np.arange(8)) @ rng.normal(size=(8, d))
    x = 12 * strong + 4 * rng.normal(size=(n, d)) + np.linspace(0, 20, n)[:, None] + rng.normal(size=d) * 10
    if dtype == "bool":
        return x > x.mean()
    info = np.iinfo(dtype)
    middle = info.min + (10 if dark else 110)
    return np.clip(np.rint(x + middle), info.min, info.max).astype(dtype)


def orthonormal(q: int, d: int, rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(d, q)))[0].T.astype(np.float32)


shapes = given(
    st.sampled_from(DTYPES),
    st.integers(1, 12),
    st.integers(1, 450),
    st.integers(12, 90),
    st.integers(0, 99),
    st.booleans(),
)


@shapes
@settings(deadline=None, max_examples=60)
def test_products_and_image_are_their_definitions(
    dtype: str, q: int, n: int, d: int, seed: int, centered: bool
) -> None:
    rng = np.random.default_rng(seed)
    batch, basis = bytes_of(dtype, n, d, rng, dark=seed % 2 == 0), orthonormal(q, d, rng)
    mean = batch.astype(float).mean(axis=0) + rng.normal(size=d) if centered else None
    before = float(rng.integers(1, 900))
    rows = ByteRows(batch, mean, before, q, wide_products)
    group = 192 * (1 + seed % 2)
    cross, grams = rows.products(basis, group)
    wanted = np.zeros(d)
    if mean is not None:
        pull = 1 - np.sqrt(before / (before + n))
        wanted = (1 - pull) * mean + pull * batch.astype(float).mean(axis=0)
    # The point is a multiple of a step: a 32639th of its largest distance from the middle of the range.
    middle = {"uint8": 128, "int8": 0, "bool": 0}[dtype]
    point = rows._point + middle
    assert np.abs(point - wanted).max() <= np.abs(wanted - middle).max() / 32639 / 2 * (1 + 1e-9)
    x = batch.astype(float) - point
    square = (x**2).sum()
    for first, gram in zip(range(0, n, group), grams, strict=True):
        some = x[first : first + group]
        np.testing.assert_allclose(gram, some @ some.T, rtol=1e-12, atol=1e-8)
    np.testing.assert_allclose(rows.added, square, rtol=1e-12, atol=1e-8)
    apart = np.linalg.norm(cross - x @ basis.T.astype(float))
    assert apart <= rows.error * np.sqrt(q * square) + 1e-9
    assert rows.error < 5e-3
    energy, scale = np.sort(rng.random(q) * 1e4)[::-1], rng.random(q) * 1e-3
    exact, cross = cross, rows._rounded(cross.T, first=not seed % 3)
    assert np.linalg.norm(cross - exact) <= min(rows._distance * (1 + 1e-9), np.sqrt(1e-4 * square)) + 1e-9
    image, products = rows.image(basis, energy, scale)
    expected = scale[:, None] * (energy[:, None] * basis.astype(float) + cross.T @ x)
    bound = scale * (rows.image_error * np.sqrt((cross**2).sum(axis=0) * square) + 4 * 2.0**-24 * energy)
    assert (np.linalg.norm(image - expected, axis=1) <= bound + 1e-12).all()
    np.testing.assert_allclose(products, expected @ expected.T, rtol=1e-4, atol=1e-5 * np.abs(products).max())


@shapes
@settings(deadline=None, max_examples=60)
def test_a_step_keeps_the_projection_that_it_states(dtype: str, q: int, n: int, d: int, seed: int, first: bool) -> None:
    """L^T P L for the rounded coefficients, and a bound on what is discarded; also of the first samples."""
    rng = np.random.default_rng(seed)
    batch, k = bytes_of(dtype, n, d, rng), (q + 1) // 2
    basis, energy = np.zeros((q, d), np.float32), np.zeros(q)
    if not first:
        x = bytes_of(dtype, 2000, d, rng).astype(float)
        values, vectors = np.linalg.eigh((x - x.mean(axis=0)).T @ (x - x.mean(axis=0)))
        basis, energy = vectors[:, : -q - 1 : -1].T.astype(np.float32), 20 * values[: -q - 1 : -1]
    old, before = basis.astype(float).copy(), np.zeros(d)
    rows = ByteRows(batch, before, 0.0 if first else 1e4, q, wide_products)
    step = absorb(basis, energy, rows, k)
    if step is None:
        np.testing.assert_array_equal(basis, old)
        return
    x = batch.astype(float) - (rows._point + {"uint8": 128, "int8": 0, "bool": 0}[dtype])
    stack = np.concatenate([np.sqrt(energy)[: len(step.energy) if first else q, None] * old[: len(rows._steps)], x])
    coefficients = np.concatenate(
        [np.diag(np.sqrt(energy))[: len(rows._steps), : len(rows._steps)], rows._wide * rows._steps]
    )
    if first:
        stack, coefficients = x, rows._wide * rows._steps
    span = np.linalg.qr(coefficients)[0]
    kept = stack.T @ span @ span.T @ stack
    m, total = len(step.energy), (stack**2).sum()
    found = (basis[:m].T.astype(float) * step.energy) @ basis[:m]
    assert np.linalg.norm(found - kept, "nuc") <= step.slack + step.discarded * (m < len(rows._steps)) + 1e-4 * total
    left = np.linalg.eigvalsh(stack.T @ stack - found)[::-1]
    assert step.discarded + step.slack >= left[:k].sum() - 1e-7 * total
    assert step.largest + step.slack >= left[0] - 1e-7 * total


@pytest.mark.parametrize(("outlier", "first", "bits"), [(1, False, 8), (40, False, 16), (1, True, 16)])
def test_coefficients_have_8_bits_where_these_change_little(outlier: float, first: bool, bits: int) -> None:
    """A single large coefficient takes the levels from all others."""
    rng = np.random.default_rng(0)
    batch, basis, energy = np.full((800, 100), 128, np.uint8), orthonormal(1, 100, rng), np.full(1, 1e9)
    batch[:, :50] += rng.integers(0, 3, (800, 50)).astype(np.uint8)
    batch[0] = 128 + np.rint(outlier * np.sign(basis[0])).astype(int)
    rows = ByteRows(batch, np.full(100, 128.0), 1e4, 1, wide_products)
    cross, beyond, _ = rows.coefficients(basis, np.zeros(1) if first else energy, 1)
    assert rows._wide.dtype.itemsize * 8 == bits
    x = batch.astype(float) - rows._point - 128
    if not first:
        assert np.linalg.norm(cross - x @ basis.T.astype(float)) ** 2 <= 1.001e-4 * (x**2).sum()
        assert np.linalg.svd(x - cross @ basis, compute_uv=False)[0] ** 2 <= beyond * (1 + 1e-5)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("seed", range(20))
def test_the_rounding_of_coefficients_is_bounded(seed: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples along the only direction, nothing else is discarded. The direction is rounded, too."""
    monkeypatch.setattr(rows_of_steps, "_ROUNDED", 1e-4 if bits == 8 else 0)
    rng = np.random.default_rng(seed)
    # Without entries of 2, the rounded direction is too long, and so are the coefficients before they are rounded.
    direction = rng.choice([-3, -2, -1, 1, 2, 3] if seed % 2 else [-3, -1, 1, 3], 64)
    sizes = rng.integers(-42, 43, 500)
    sizes[250:] = -sizes[:250]  # their mean is that of the previous samples
    rows = ByteRows((128 + np.outer(sizes, direction)).astype(np.uint8), np.full(64, 128.0), 1e4, 1, wide_products)
    length = np.linalg.norm(direction)
    cross, beyond, strongest = rows.coefficients((direction / length)[None].astype(np.float32), np.full(1, 1e9), 1)
    changed = float(np.linalg.norm(cross[:, 0] - length * sizes) ** 2)
    assert rows._wide.dtype.itemsize * 8 == bits
    assert changed <= min(beyond, strongest)
    assert strongest <= (2 * changed if bits == 8 else 1e-4 * float(np.square(length * sizes).sum()))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_of_steps, "_PAYS_FROM", 0)


@pytest.mark.usefixtures("always")
@given(st.data())
@settings(deadline=None, max_examples=40, suppress_health_check=[])
def test_bounds_of_streams_of_bytes_hold(data: st.DataObject) -> None:
    """Any batches and tree of merges, of parts that may have nothing in common."""
    d, rng = data.draw(st.integers(10, 60), label="d"), np.random.default_rng(data.draw(st.integers(0, 999)))
    k, dtype = data.draw(st.integers(1, 4), label="k"), data.draw(st.sampled_from(DTYPES), label="dtype")
    center = data.draw(st.booleans(), label="center")
    rule = IncrementalSVD(k, oversampling=data.draw(st.integers(0, 5)), center=center, wide=True)
    states, parts = [], []
    for _ in range(data.draw(st.integers(1, 3), label="parts")):
        n = data.draw(st.integers(1, 1500), label="n")
        x = bytes_of(dtype, n, d, rng, dark=data.draw(st.booleans(), label="dark"))
        rows, state = data.draw(st.sampled_from([40, 300, 4096]), label="rows"), rule.init(d, x.dtype)
        for start in range(0, n, rows):
            rule.update(state, x[start : start + rows])
        states.append(state)
        parts.append(x)
    while len(states) > 1:
        states[:2] = [rule.merge(*states[:2])]
    whole = np.concatenate(parts).astype(float)
    if len(whole) < 2:
        return
    found, mean = rule.finish(states[0]), whole.mean(axis=0) * center
    np.testing.assert_allclose(found["mean"], mean, atol=1e-4)
    covariance = (whole - mean).T @ (whole - mean) / (len(whole) - 1)
    values = np.linalg.eigvalsh(covariance)[::-1]
    room = 1e-6 * np.trace(covariance)
    captured = np.trace(found["components"] @ covariance @ found["components"].T)
    np.testing.assert_allclose(found["total_variance"], np.trace(covariance), rtol=1e-5)
    assert found["explained_variance"].sum() <= captured + room
    assert found["captured_bound"] * values[:k].sum() <= captured + room
    apart = np.eye(d) - found["directions"].T @ found["directions"]
    assert np.linalg.eigvalsh(apart @ covariance @ apart)[-1] <= found["outside"] + room


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.usefixtures("always")
def test_components_are_those_of_numpy(dtype: str, center: bool) -> None:
    x = bytes_of(dtype, 6000, 150, np.random.default_rng(0), dark=True)
    rule = IncrementalSVD(4, oversampling=20, center=center)
    state = rule.init(150, x.dtype)
    for start in range(0, len(x), 4096):
        rule.update(state, x[start : start + 4096])
    assert state.arrays["energy"].all()
    found, values = rule.finish(state), x.astype(float)
    values -= values.mean(axis=0) * center
    singular, right = np.linalg.svd(values, full_matrices=False)[1:]
    np.testing.assert_allclose(found["explained_variance"], singular[:4] ** 2 / (len(x) - 1), rtol=1e-4)
    np.testing.assert_allclose(np.abs(np.sum(found["components"] * right[:4], axis=1)), 1, atol=1e-4)
    assert found["captured_bound"] > 0.9


def test_which_rows_have_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a batch and its dtype decide, and no history of the process."""
    from dpca.rules.base.state import ALL

    large = np.zeros((1000, 4000), np.uint8)
    assert exact_kernel(large, 30, ALL) is wide_products
    assert exact_kernel(large, 20, ALL) is None
    assert exact_kernel(large.astype(np.uint16), 30, ALL) is None
    assert exact_kernel(large.astype(np.float32), 30, ALL) is None
    assert exact_kernel(large.T, 30, ALL) is None
    # A state that was sent to another worker has a copy of the only block.
    assert exact_kernel(large, 30, pickle.loads(pickle.dumps(ALL))) is wide_products


@pytest.mark.usefixtures("always")
def test_states_that_were_sent_are_merged_to_the_same_bytes() -> None:
    """The samples that each state still holds are processed on the worker that merges, which received one of them."""
    x = bytes_of("uint8", 900, 150, np.random.default_rng(3))
    rule, states = InBatches(IncrementalSVD(3, oversampling=7), 300), []
    for part in (x[:500], x[500:]):
        states.append(rule.update(rule.init(150, x.dtype), part))
    assert [state.counts["n_held"] for state in states] == [200, 100]
    found = []
    for sent in ([], [0], [1], [0, 1]):
        a, b = (pickle.loads(pickle.dumps(s)) if i in sent else s.copy() for i, s in enumerate(states))
        found.append(rule.finish(rule.merge(a, b)))
    for other in found[1:]:
        for name, values in found[0].items():
            np.testing.assert_array_equal(other[name], values)


@pytest.mark.usefixtures("always")
def test_equal_samples_and_few_distinct_ones() -> None:
    rule = IncrementalSVD(3, oversampling=5)
    for x in (
        np.full((300, 40), 7, np.uint8),
        np.repeat(bytes_of("uint8", 2, 40, np.random.default_rng(1)), 200, axis=0),
    ):
        state = rule.init(40, x.dtype)
        rule.update(state, x)
        found, values = rule.finish(state), np.cov(x.astype(float), rowvar=False)
        np.testing.assert_allclose(found["explained_variance"].sum(), np.trace(values), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [600, 1600])
@pytest.mark.parametrize("k", [10, 150, 200])
def test_bounds_on_the_rest_of_rows_hold_and_are_close_for_many_components(k: int, n: int) -> None:
    """The largest eigenvalues of the scatter outside of the basis, by numpy; 7 x 220 rows have a single Gram matrix."""
    rng = np.random.default_rng(k)
    batch, q, d = bytes_of("uint8", n, 500, rng), 220, 500
    rows = ByteRows(batch, np.full(d, 120.0), 1e4, q, wide_products)
    basis = orthonormal(q, d, rng)
    cross, beyond, strongest = rows.coefficients(basis, np.ones(q), k)
    rest = batch.astype(float) - (rows._point + 128) - cross @ basis
    left = np.linalg.svd(rest, compute_uv=False) ** 2
    # The basis is rounded: `absorb` adds the effect on C.
    assert left[:k].sum() <= beyond * (1 + 1e-5)
    assert left[0] <= strongest * (1 + 1e-5)
    # C has 8 bits, whose effect is bounded.
    assert strongest <= left[0] * (1 + 3e-4 if n == 600 else 5 if k < 192 else 3.5)
    for enough in (1.01 * strongest, math.inf):
        _, same, loose = rows.coefficients(basis, np.ones(q), k, enough)
        assert same == beyond
        assert strongest <= loose
    assert rows.coefficients(basis, np.ones(q), k, 0.99 * strongest)[2] == strongest


def noise(n: int, d: int) -> np.ndarray:
    """Three directions, and noise of equal variance in all others."""
    rng = np.random.default_rng(0)
    strong = rng.normal(size=(n, 3)) @ rng.normal(size=(3, d))
    return np.clip(np.rint(128 + 10 * strong + 8 * rng.normal(size=(n, d))), 0, 255).astype(np.uint8)


@pytest.mark.usefixtures("always")
def test_noise_of_equal_variance_is_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The components after the third are noise, so that the bounds of small groups refuse larger steps."""
    sizes: list[int] = []
    step = IncrementalSVD._nystrom_step

    def noted(self: IncrementalSVD, state: State, batch: np.ndarray, kernel: ModuleType | None) -> bool:
        accepted = step(self, state, batch, kernel)
        sizes.append(len(batch) if accepted else -len(batch))
        return accepted

    monkeypatch.setattr(IncrementalSVD, "_nystrom_step", noted)
    monkeypatch.setattr(IncrementalSVD, "_step", lambda *_: pytest.fail("rows were stacked"))
    x, rule = noise(5000, 3000), IncrementalSVD(10, oversampling=20)
    state = rule.init(3000, x.dtype)
    for start in (0, 2000):
        rule.update(state, x[start : start + 2000])
    assert sum(size for size in sizes if size > 0) == 4000
    assert max(map(abs, sizes[1:])) < 400  # whole parts of these batches have 500 to 2,000 samples, and are not tried
    # After many samples, the scatter of a batch is small beside that of the basis.
    rule.extrapolate(state, 400_000)
    rule.update(state, x[4000:])
    assert sizes[-1] == 1000


@pytest.mark.usefixtures("always")
def test_rows_that_a_step_refuses_are_tried_in_smaller_steps_and_then_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rule, taken = noise(6000, 200), IncrementalSVD(3, oversampling=7), []
    state = rule.init(200, x.dtype)
    rule.update(state, x[:4000])
    step, stack, most = IncrementalSVD._nystrom_step, IncrementalSVD._step, 2000

    def limited(self: IncrementalSVD, state: State, batch: np.ndarray, kernel: ModuleType | None) -> bool:
        accepted = len(batch) <= most and step(self, state, batch, kernel)
        taken.append((accepted, len(batch)))
        return accepted

    def stacked(self: IncrementalSVD, state: State, batch: np.ndarray) -> None:
        taken.append(("stack", len(batch)))
        stack(self, state, batch)

    monkeypatch.setattr(IncrementalSVD, "_nystrom_step", limited)
    monkeypatch.setattr(IncrementalSVD, "_step", stacked)
    rule.update(state, x[4000:5000])
    assert taken == [(True, 1000)]
    most = 60
    rule.update(state, x[5000:5100])
    assert taken[1:] == [(False, 100), (True, 50), (True, 50)]
    most = 0
    rule.update(state, x[5100:5200])
    stacks = [("stack", 16), ("stack", 17), ("stack", 17)]
    assert sorted(map(str, taken[4:])) == sorted(map(str, [(False, 100), *[(False, 50)] * 2, *stacks * 2]))
    assert state.counts["n_samples"] == 5200


def test_a_state_is_extrapolated_to_more_samples_of_the_same_variance() -> None:
    x, rule = noise(1000, 60), IncrementalSVD(3, oversampling=7, wide=True)
    state = rule.init(60, x.dtype)
    rule.update(state, x)
    before, later = rule.finish(state.copy()), state.copy()
    rule.extrapolate(later, 50_000)
    assert later.counts["n_samples"] == 50_000
    after = rule.finish(later)
    np.testing.assert_array_equal(after["mean"], before["mean"])
    for name in ("explained_variance", "total_variance", "outside", "kept_energy"):
        np.testing.assert_allclose(after[name] / (50_000 / 49_999), before[name] / (1000 / 999), rtol=1e-9)
    # Never back to fewer samples, and not where old samples are forgotten.
    rule.extrapolate(state, 500)
    IncrementalSVD(3, oversampling=7, forgetting=0.999).extrapolate(state, 5000)
    assert state.counts["n_samples"] == 1000
