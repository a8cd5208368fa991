"""Options of rules through StreamingPCA: they reach the rule, have a meaning or a sentence, and survive a disk."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import StreamingPCA
from dpca.engine.folds.plan import PlanError
from dpca.engine.sources.shuffled import shuffle
from dpca.engine.sources.source import as_source
from dpca.models import OrderWarning
from dpca.models.streaming.streaming_methods import (
    RuleStream,
    describe_option,
    make_rule,
    restore_option,
    rule_class,
    with_former_options,
)
from dpca.parameters.declaration import declared_in
from dpca.parameters.streaming import RULE_CLASSES
from dpca.rules import (
    CCIPCA,
    IPCA,
    AcceleratedBlockPower,
    AcceleratedOja,
    BlockPower,
    Constant,
    Delayed,
    ExplicitKrasulina,
    FirstStrategy,
    Harmonic,
    ImplicitKrasulina,
    IncrementalSVD,
    Oja,
    OjaSubspace,
    Power,
    Sanger,
    SecondStrategy,
    SimilarityMatching,
    gains_of,
)
from dpca.storage.errors import DataError, StoreError
from dpca.storage.run import Run
from dpca.storage.transaction.checkpoints import Checkpoints
from tests.rules.streams import fit, lost_variance, planted

pytestmark = pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")

RULES: list[Any] = [
    IncrementalSVD(oversampling=3, forgetting=0.99),
    Oja(schedule=Power(0.5, 0.7), orthonormalize_every=4, unit=1.0),
    Oja(schedule=Harmonic(2.0), unit=2),
    Oja(schedule=Constant(0.1)),
    Oja(online=True),
    ImplicitKrasulina(schedule=Power(1.0, 0.8), online=True, unit=1.0),
    BlockPower(growth=1.2, momentum=0.5),
    AcceleratedBlockPower(acceleration=FirstStrategy(2.0, seed=3)),
    AcceleratedBlockPower(acceleration=FirstStrategy(2.0), per_component=True),
    Sanger(gains=gains_of("smd", 0.02, 100.0, 0.01)),
    AcceleratedOja(schedule=Harmonic(9.0), acceleration=Constant(1.0)),
    CCIPCA(amnesic=2.0, online=True),
    IPCA(),
    SimilarityMatching(tau=0.25, neural_steps=7),
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def seed_of(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31))


def filled(rule: Any) -> Any:
    """What an estimator of 3 components and random_state=0 makes of a rule, by hand."""
    rule = replace(rule, n_components=3)
    if hasattr(rule, "seed"):
        rule = replace(rule, seed=seed_of(0))
    if getattr(rule, "acceleration", None) == FirstStrategy(2.0):
        rule = replace(rule, acceleration=FirstStrategy(2.0, seed=seed_of(0)))
    return rule


@each_rule
def test_a_rule_brings_its_options(rule: Any) -> None:
    x = planted(700)
    one = Run(threads=1)  # one segment, nothing to merge
    model = StreamingPCA(3, method=rule, random_state=0, batch_size=50).fit(x, run=one)
    found = fit(filled(rule), x, rows=50)
    np.testing.assert_array_equal(model.components_, found["components"])
    np.testing.assert_array_equal(model.explained_variance_, found["explained_variance"])
    assert model.method is rule


@pytest.mark.parametrize("method", RULE_CLASSES)
def test_a_name_is_the_rule_without_options(method: str) -> None:
    x = planted(700)
    a = StreamingPCA(3, method=method, random_state=4).fit(x)
    b = StreamingPCA(3, method=rule_class(method)(), random_state=4).fit(x)
    np.testing.assert_array_equal(a.components_, b.components_)
    rule = make_rule(method, 2, center=False, batch_size=7, seed=5)
    assert type(rule.rule) is rule_class(method)
    assert rule.size == 7
    assert rule.rule.center is False
    assert getattr(rule.rule, "seed", 5) == 5
    if hasattr(rule.rule, "acceleration"):
        assert rule.rule.acceleration == SecondStrategy(seed=5)


@pytest.mark.parametrize("method", [m for m in RULE_CLASSES if m != "incremental-svd"])
def test_an_option_of_the_default_is_no_option_of_others(method: str) -> None:
    for name, value in {"oversampling": 1, "forgetting": 0.9}.items():
        for given in (method, rule_class(method)()):
            with pytest.raises(DataError, match=name):
                StreamingPCA(2, method=given, **{name: value}).fit(planted(50))


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        (
            {"method": "oya"},
            "method",
        ),
        ({"method": Oja}, "method"),
        ({"method": Harmonic(1.0)}, "method"),
        ({"forgetting": 2.0}, "forgetting"),
        ({"oversampling": True}, "oversampling"),
        ({"oversampling": "50"}, "oversampling is '50': give an integer"),
    ],
)
def test_values_without_sense_are_one_sentence(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        StreamingPCA(2, **parameters).fit(planted(50))


def test_messages_name_the_rule() -> None:
    x = planted(300)
    model = StreamingPCA(2, method=Oja()).partial_fit(x)
    with pytest.raises(DataError, match="merge"):
        model.merge(StreamingPCA(2, method=Oja()).partial_fit(x))


def test_parameters_are_scikit_learns() -> None:
    model = StreamingPCA(3, method=Oja(schedule=Power(1.0, 0.7), unit=255.0), shuffle=True)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(method=Oja(schedule=Harmonic(3.0))).method.schedule == Harmonic(3.0)
    assert model.method.schedule == Power(1.0, 0.7)
    assert "Power(eta=1.0, gamma=0.7)" in repr(model)


def test_rules_come_back_from_disk(tmp_path: Path) -> None:
    x = planted(150)
    for i, rule in enumerate([*RULES, "sanger"]):
        model = StreamingPCA(3, method=rule, shuffle=True, random_state=0).fit(x)
        model.save(tmp_path / f"{i}.zarr")
        loaded = StreamingPCA.load(tmp_path / f"{i}.zarr")
        assert {**loaded.get_params(), "random_state": 0} == model.get_params()
        np.testing.assert_equal(
            [loaded.angle_moved_, loaded.variance_moved_], [model.angle_moved_, model.variance_moved_]
        )


@each_rule
def test_a_description_is_plain_json(rule: Any) -> None:
    assert restore_option(json.loads(json.dumps(describe_option(rule)))) == rule


def test_only_what_has_a_name_is_stored_and_read(tmp_path: Path) -> None:
    model = StreamingPCA(2, method=ExplicitKrasulina(schedule=Constant(0.01))).fit(planted(300))
    with pytest.raises(DataError, match=r"ExplicitKrasulina.*stored"):
        model.save(tmp_path / "m.zarr")
    for stored in (
        {"method": "os.system", "options": {}},
        {"method": "oja", "options": {"schedule": {"schedule": "eval", "source": "1"}}},
        {"method": "oja", "options": {"nothing": 1}},
        {"method": "oja", "options": {"unit": -1}},
    ):
        with pytest.raises((DataError, KeyError, TypeError, ValueError)):
            restore_option(stored)
    StreamingPCA(2, method=Oja()).fit(planted(300)).save(tmp_path / "m.zarr")
    attributes = tmp_path / "m.zarr" / "zarr.json"
    attributes.write_text(attributes.read_text().replace('"oja"', '"os.system"'))
    with pytest.raises(StoreError):
        StreamingPCA.load(tmp_path / "m.zarr")


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("oja", {"schedule": {"schedule": "Harmonic", "c": 2.0}, "unit": 9.0}, Oja(schedule=Harmonic(2.0), unit=9.0)),
        ("oja", {"online": True}, Oja(online=True)),
        (
            "oja-subspace",
            {"unit": "measured", "schedule": {"schedule": "Constant", "eta": 0.1}},
            OjaSubspace(schedule=Constant(0.1)),
        ),
        (
            "accelerated-block-power",
            {"growth": 1.1, "acceleration": {"schedule": "FirstStrategy", "c": 2.0, "seed": 4}},
            AcceleratedBlockPower(growth=1.1, acceleration=FirstStrategy(2.0, seed=4)),
        ),
        (
            "similarity-matching",
            {"tau": 0.4, "schedule": {"schedule": "Delayed", "eta": 0.2, "tau": 2.5}},
            SimilarityMatching(schedule=Delayed(0.2, 2.5), tau=0.4),
        ),
    ],
)
def test_parameters_of_stores_written_before_become_a_rule(method: str, options: Any, expected: Any) -> None:
    stored = {"method": method, "batch_size": 20, "growth": None, **options}
    found = with_former_options(method, stored, declared_in(StreamingPCA))
    assert found == {"method": expected}
    assert with_former_options(method, {"method": method, "growth": None}, declared_in(StreamingPCA)) == {}


def test_the_steps_of_gradient_rules_do_not_depend_on_the_unit_of_the_data() -> None:
    x = planted(4000)
    for method in ("oja", "oja-subspace", "krasulina", "sanger", "implicit-krasulina", "accelerated-oja"):
        losses = []
        for scale in (255.0, 1e-3):
            model = StreamingPCA(3, method=method, random_state=0).fit(scale * x)
            losses.append(lost_variance(model.components_, x))
        if method != "implicit-krasulina":
            assert max(losses) < 0.01, method
        np.testing.assert_allclose(losses, losses[0], rtol=1e-3)


def sorted_store(folder: Path, n: int = 1000) -> tuple[np.ndarray, str]:
    x = planted(n)
    x = x[np.argsort(x @ np.ones(30))].astype(np.float32)
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(10, 30))
    return x, str(folder / "x.zarr")


def test_shuffle_takes_another_order_decided_by_the_seed(tmp_path: Path, cluster: Any) -> None:
    x, path = sorted_store(tmp_path, 400)
    parameters = {"method": "oja", "batch_size": 20, "shuffle": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrderWarning)
        first = StreamingPCA(3, random_state=1, **parameters).fit(path)
    again = StreamingPCA(3, random_state=1, **parameters).fit(path, run=Run(client=cluster))
    np.testing.assert_array_equal(first.components_, again.components_)
    other = StreamingPCA(3, random_state=2, **parameters).fit(path)
    assert not np.array_equal(first.components_, other.components_)
    np.testing.assert_allclose(first.mean_, x.astype(float).mean(0), rtol=1e-5)
    # The order is that of the source, given to the same rule.
    order = np.empty(x.shape, np.float32)
    shuffle(as_source(path), seed_of(1)).reader()((0, len(x)), ((0, 30),), order)
    by_hand = StreamingPCA(3, random_state=1, method="oja", batch_size=20).fit(order)
    np.testing.assert_array_equal(first.components_, by_hand.components_)
    lazy = StreamingPCA(3, random_state=1, **parameters).fit(da.from_array(x, chunks=(10, 30)))
    np.testing.assert_array_equal(first.components_, lazy.components_)


def test_shuffle_is_for_arrays_in_memory_too(tmp_path: Path) -> None:
    x, _ = sorted_store(tmp_path)
    losses = {
        shuffled: lost_variance(
            StreamingPCA(2, method="accelerated-block-power", random_state=0, batch_size=20, shuffle=shuffled)
            .fit(x)
            .components_,
            x,
        )
        for shuffled in (False, True)
    }
    assert losses[True] < 0.3 * losses[False]


def test_one_folder_of_checkpoints_for_many_fits(tmp_path: Path) -> None:
    _, path = sorted_store(tmp_path, 200)
    kept = Checkpoints(str(tmp_path / "kept"))
    for parameters in (
        {"method": "oja", "random_state": 1, "shuffle": True},
        {"method": "oja", "random_state": 2, "shuffle": True},
        {"method": Oja(schedule=Constant(0.01)), "random_state": 1, "shuffle": True},
        {"method": "incremental-svd", "random_state": 1, "n_passes": 2},
        {"method": "incremental-svd", "random_state": 1, "n_passes": 2, "oversampling": 1},
    ):
        alone = StreamingPCA(3, **parameters).fit(path)
        for _ in range(2):
            model = StreamingPCA(3, **parameters).fit(path, run=Run(checkpoints=kept))
            np.testing.assert_array_equal(model.components_, alone.components_)
            np.testing.assert_array_equal(model.explained_variance_, alone.explained_variance_)


def test_few_samples_take_no_room_for_more_directions_than_they_span(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 200_000), dtype=np.uint8)
    zarr.create_array(str(tmp_path / "x.zarr"), data=x, chunks=(1, 50_000))
    flat = x - x.mean(axis=0)
    values = np.linalg.eigvalsh(flat @ flat.T)[::-1] / 4
    for options in ({}, {"n_passes": 2}):
        # Room for 62 directions, while 5 samples span 5, was 289 MB.
        model = StreamingPCA(2, random_state=0, memory_budget=160_000_000, **options).fit(tmp_path / "x.zarr")
        np.testing.assert_allclose(model.explained_variance_, values[:2], rtol=1e-5)
        assert model.captured_bound_ > 0.99
    # What goes on keeps its room.
    longer = StreamingPCA(2, random_state=0, keep_state=True).fit(x[:, :90])
    more = np.random.default_rng(1).integers(0, 256, (40, 90), dtype=np.uint8)
    both = np.vstack([x[:, :90], more]).astype(float)
    exact = np.linalg.eigvalsh(np.cov(both.T))[::-1]
    np.testing.assert_allclose(longer.partial_fit(more).explained_variance_, exact[:2], rtol=1e-5)


@pytest.mark.parametrize(("method", "batches"), [("covariance", False), ("oja", True)])
def test_a_plan_that_does_not_fit_advises_what_the_estimator_can_do(method: str, batches: bool) -> None:
    x = np.zeros((4000, 2000), np.uint8)
    model = StreamingPCA(50, method=method, memory_budget=30_000_000)
    with pytest.raises(PlanError, match="CellPCA") as error:
        model.fit(x)
    assert "smaller cells" not in str(error.value)
    assert ("batch_size" in str(error.value)) is batches


@pytest.mark.parametrize(
    ("k", "d", "dtype", "size"),
    [
        (5, 196_608, np.uint8, 682),  # 128 MiB
        (50, 196_608, np.uint8, 682),
        (50, 196_608, np.float32, 341),  # 256 MiB
        (500, 196_608, np.uint8, 1365),  # 256 MiB of bytes are fewer than three for each of 600 directions
        (500, 100_000, np.uint8, 1800),
        (500, 196_608, np.float32, 341),
        (500, 3072, np.float32, 1800),
        (50, 3072, np.uint8, 2048),
        (50, 3072, np.float32, 1024),
    ],
)
def test_batches_have_three_samples_for_each_direction_if_these_fit(k: int, d: int, dtype: type, size: int) -> None:
    stream = RuleStream(n_features=d, itemsize=np.dtype(dtype).itemsize)
    assert make_rule("incremental-svd", k, center=True, batch_size=None, seed=0, stream=stream).size == size


@pytest.mark.parametrize(("k", "given", "kept"), [(5, None, 60), (300, None, 60), (500, None, 100), (500, 7, 7)])
def test_hundreds_of_components_have_more_further_directions(k: int, given: int | None, kept: int) -> None:
    options = {"oversampling": given}
    rule = make_rule("incremental-svd", k, center=True, batch_size=None, seed=0, options=options).rule
    assert (rule.n_components, rule.oversampling) == (k, kept)
    own = make_rule(IncrementalSVD(oversampling=9), k, center=True, batch_size=None, seed=0).rule
    assert own.oversampling == 9


def test_a_stream_of_bytes_has_batches_of_its_dtype() -> None:
    x = np.arange(180_000, dtype=np.uint8).reshape(2, 300, 300)
    model = StreamingPCA(200, method="incremental-svd").partial_fit(x)
    assert model._states[0].arrays["buffered_rows"].shape == (1490, 90_000)  # 128 MiB
