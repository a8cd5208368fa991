"""Options of rules through StreamingPCA: they reach the rule, have a meaning or a sentence, and survive a disk."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.base import clone

from dpca import StreamingPCA
from dpca.engine import as_source
from dpca.engine.checkpoint import Checkpoints
from dpca.engine.shuffled import shuffle
from dpca.models import OrderWarning
from dpca.models.streaming_methods import METHODS, OPTIONS, STEPS, make_rule
from dpca.rules import (
    CCIPCA,
    AcceleratedBlockPower,
    AcceleratedOja,
    BlockPower,
    Constant,
    Delayed,
    FirstStrategy,
    Harmonic,
    ImplicitKrasulina,
    IncrementalSVD,
    Oja,
    Power,
    SecondStrategy,
    SimilarityMatching,
)
from storage.errors import DataError
from tests.rules.streams import fit, lost_variance, planted

pytestmark = pytest.mark.filterwarnings("ignore::dpca.models.ConvergenceWarning")

CASES: list[tuple[str, dict[str, Any], Any]] = [
    ("incremental-svd", {"oversampling": 3, "forgetting": 0.99}, IncrementalSVD(3, 3, forgetting=0.99)),
    (
        "oja",
        {"schedule": Power(0.5, 0.7), "orthonormalize_every": 4},
        Oja(3, Power(0.5, 0.7), orthonormalize_every=4, unit=1.0),
    ),
    ("oja", {"schedule": Harmonic(2.0), "unit": 2}, Oja(3, Harmonic(2.0), unit=2)),
    ("oja", {"schedule": Constant(0.1), "unit": "measured"}, Oja(3, Constant(0.1), unit=None)),
    ("oja", {"unit": 2.0}, Oja(3, unit=2.0)),
    ("oja", {"online": True}, Oja(3, STEPS["oja"], unit=None, online=True)),
    ("implicit-krasulina", {"online": True, "schedule": Power(1.0, 0.8)}, ImplicitKrasulina(3, online=True)),
    ("block-power", {"growth": 1.2, "momentum": 0.5}, BlockPower(3, growth=1.2, momentum=0.5)),
    ("accelerated-block-power", {"acceleration": FirstStrategy(2.0)}, AcceleratedBlockPower(3, FirstStrategy(2.0))),
    ("accelerated-block-power", {"growth": 1.1, "per_component": True}, None),
    ("accelerated-oja", {"schedule": Harmonic(9.0), "acceleration": Constant(1.0)}, None),
    ("ccipca", {"amnesic": 2.0, "online": True}, CCIPCA(3, amnesic=2.0, online=True)),
    ("similarity-matching", {"tau": 0.25, "neural_steps": 7}, SimilarityMatching(3, tau=0.25, neural_steps=7)),
]


def expected_rule(method: str, options: dict[str, Any], rule: Any) -> Any:
    if rule is not None:
        return rule
    kind = AcceleratedOja if method == "accelerated-oja" else AcceleratedBlockPower
    return kind(3, **{"acceleration": SecondStrategy(seed=seed_of(0)), **options})


def seed_of(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31))


@pytest.mark.parametrize(("method", "options", "rule"), CASES)
def test_options_reach_the_rule(
    method: str, options: dict[str, Any], rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["dpca.engine.fold"], "thread_count", lambda: 1)  # one segment, nothing to merge
    x = planted(700)
    model = StreamingPCA(3, method=method, random_state=0, batch_size=50, **options).fit(x)
    rule = expected_rule(method, options, rule)
    if hasattr(rule, "seed"):
        rule = type(rule)(**{**vars(rule), "seed": seed_of(0)})
    found = fit(rule, x, rows=50)
    np.testing.assert_array_equal(model.components_, found["components"])
    np.testing.assert_array_equal(model.explained_variance_, found["explained_variance"])


def test_every_option_of_every_rule_is_known() -> None:
    from dataclasses import fields

    own = {"n_components", "center", "seed"}
    assert {field.name for kind in METHODS.values() for field in fields(kind)} - own == set(OPTIONS)
    parameters = StreamingPCA(1).get_params()
    assert set(OPTIONS) <= set(parameters)
    assert all(parameters[name] is None for name in OPTIONS)


@pytest.mark.parametrize("method", list(METHODS))
def test_an_option_of_another_method_is_one_sentence(method: str) -> None:
    values = {"schedule": Harmonic(1.0), "acceleration": Constant(1.0), "online": True, "per_component": True}
    for name in OPTIONS:
        if name not in METHODS[method].__dataclass_fields__:
            with pytest.raises(DataError, match=f"^{name} has no meaning for {method}: .* or use one of"):
                StreamingPCA(2, method=method, **{name: values.get(name, 1)}).fit(planted(50))


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("oja", {"schedule": 0.1}, "schedule is 0.1: give a schedule of dpca.rules: Harmonic"),
        ("oja", {"schedule": lambda t: 1 / t}, "give a schedule"),
        ("oja", {"unit": "pixel"}, "unit is 'pixel': give a positive number, or 'measured'"),
        ("oja", {"unit": -1.0}, "unit is -1.0: a positive number"),
        ("oja", {"online": 1}, "online is 1: give True or False"),
        ("oja", {"orthonormalize_every": 0}, "orthonormalize_every is 0: at least 1"),
        ("oja", {"orthonormalize_every": 2.5}, "whole number of updates"),
        ("block-power", {"growth": 0.5}, "growth is 0.5"),
        ("block-power", {"momentum": "strong"}, "momentum is 'strong': give a number"),
        ("block-power", {"online": True}, "does not work sample by sample"),
        ("accelerated-block-power", {"momentum": 1.0}, "no momentum"),
        ("ccipca", {"amnesic": -1}, "amnesic is -1"),
        ("incremental-svd", {"forgetting": 2.0}, "forgetting is 2.0"),
        ("incremental-svd", {"oversampling": True}, "oversampling is True: give a whole number"),
        ("similarity-matching", {"neural_steps": 0}, "neural_steps is 0"),
    ],
)
def test_values_without_sense_are_one_sentence(method: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        StreamingPCA(2, method=method, **options).fit(planted(50))


def test_parameters_are_scikit_learns() -> None:
    model = StreamingPCA(3, method="oja", schedule=Power(1.0, 0.7), unit=255.0, shuffle=True)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(schedule=Harmonic(3.0)).schedule == Harmonic(3.0)
    assert model.schedule == Power(1.0, 0.7)


def test_options_come_back_from_disk(tmp_path: Path) -> None:
    x = planted(300)
    for i, (method, options, _) in enumerate(CASES):
        model = StreamingPCA(3, method=method, shuffle=True, random_state=0, **options).fit(x)
        model.save(tmp_path / f"{i}.zarr")
        loaded = StreamingPCA.load(tmp_path / f"{i}.zarr")
        assert {**loaded.get_params(), "random_state": 0} == model.get_params()
        assert (loaded.angle_moved_, loaded.variance_moved_) == (model.angle_moved_, model.variance_moved_)


def test_the_steps_of_gradient_rules_do_not_depend_on_the_unit_of_the_data() -> None:
    x = planted(4000)
    for method in STEPS:
        losses = []
        for scale in (1.0, 255.0, 1e-3):
            model = StreamingPCA(3, method=method, random_state=0).fit(scale * x)
            losses.append(lost_variance(model.components_, x))
        if method != "implicit-krasulina":
            assert max(losses) < 0.01, method
        np.testing.assert_allclose(losses, losses[0], rtol=1e-3)


def test_make_rule_without_options_is_the_rule_of_its_name() -> None:
    for method, kind in METHODS.items():
        rule = make_rule(method, 2, center=False, batch_size=7, seed=5, options={})
        assert type(rule.rule) is kind
        assert rule.size == 7
        assert rule.rule.center is False
        assert getattr(rule.rule, "seed", 5) == 5
    assert make_rule("oja", 2, center=True, batch_size=None, seed=0, options={}).rule.schedule == Delayed(0.5, 50.0)


def sorted_store(folder: Path, chunk: int = 10) -> tuple[np.ndarray, str]:
    x = planted(1000)
    x = x[np.argsort(x @ np.ones(30))].astype(np.float32)
    zarr.create_array(str(folder / "x.zarr"), data=x, chunks=(chunk, 30))
    return x, str(folder / "x.zarr")


def test_shuffle_takes_another_order_decided_by_the_seed(tmp_path: Path, cluster: Any) -> None:
    x, path = sorted_store(tmp_path)
    parameters = {"method": "oja", "batch_size": 20, "shuffle": True}
    with warnings.catch_warnings():
        warnings.simplefilter("error", OrderWarning)
        first = StreamingPCA(3, random_state=1, **parameters).fit(path)
    again = StreamingPCA(3, random_state=1, **parameters).fit(path, client=cluster)
    np.testing.assert_array_equal(first.components_, again.components_)
    other = StreamingPCA(3, random_state=2, **parameters).fit(path)
    assert not np.array_equal(first.components_, other.components_)
    np.testing.assert_allclose(first.mean_, x.astype(float).mean(0), rtol=1e-5)
    # The order is that of the source, given to the same rule.
    order = np.empty((1000, 30), np.float32)
    shuffle(as_source(path), seed_of(1)).reader()((0, 1000), ((0, 30),), order)
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
    _, path = sorted_store(tmp_path)
    kept = Checkpoints(str(tmp_path / "kept"))
    for parameters in (
        {"method": "oja", "random_state": 1, "shuffle": True},
        {"method": "oja", "random_state": 2, "shuffle": True},
        {"method": "oja", "random_state": 1, "shuffle": True, "schedule": Constant(0.01)},
        {"method": "incremental-svd", "random_state": 1, "n_passes": 2},
        {"method": "incremental-svd", "random_state": 1, "n_passes": 2, "oversampling": 1},
    ):
        alone = StreamingPCA(3, **parameters).fit(path)
        for _ in range(2):
            model = StreamingPCA(3, **parameters).fit(path, checkpoints=kept)
            np.testing.assert_array_equal(model.components_, alone.components_)
            np.testing.assert_array_equal(model.explained_variance_, alone.explained_variance_)
