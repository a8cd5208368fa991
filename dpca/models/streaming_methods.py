"""The update rules that `StreamingPCA` knows by name, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dpca.rules.accelerated import AcceleratedBlockPower, AcceleratedOja, FirstStrategy, Increasing, SecondStrategy
from dpca.rules.block_power import BlockPower
from dpca.rules.ccipca import CCIPCA
from dpca.rules.implicit_krasulina import ImplicitKrasulina
from dpca.rules.incremental_svd import IncrementalSVD
from dpca.rules.ipca import IPCA
from dpca.rules.krasulina import Krasulina
from dpca.rules.minibatch import InBatches
from dpca.rules.oja import Oja, OjaSubspace
from dpca.rules.sanger import Sanger
from dpca.rules.schedules import Constant, Delayed, Harmonic, Power, Schedule
from dpca.rules.similarity_matching import SimilarityMatching
from dpca.rules.watched import Watched
from storage.errors import DataError

METHODS: dict[str, Any] = {
    "incremental-svd": IncrementalSVD,
    "oja": Oja,
    "oja-subspace": OjaSubspace,
    "krasulina": Krasulina,
    "sanger": Sanger,
    "implicit-krasulina": ImplicitKrasulina,
    "block-power": BlockPower,
    "accelerated-block-power": AcceleratedBlockPower,
    "accelerated-oja": AcceleratedOja,
    "ccipca": CCIPCA,
    "ipca": IPCA,
    "similarity-matching": SimilarityMatching,
}
#: Step sizes of the gradient rules where nobody chose any, in units of 1 / (largest variance). The last two are what
#: the source texts take for MNIST in [0, 1], whose largest variance is 5; the first four were the best of seven there.
STEPS: dict[str, Schedule] = {
    "oja": Delayed(0.5, 50.0),
    "oja-subspace": Delayed(0.5, 50.0),
    "krasulina": Delayed(0.5, 50.0),
    "sanger": Delayed(0.5, 50.0),
    "implicit-krasulina": Power(5.0, 0.8),
    "accelerated-oja": Harmonic(500.0),
}
MEASURED = "measured"
DEFAULT_BATCH = 100

SCHEDULES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Harmonic, Power, Constant, Delayed, Increasing, FirstStrategy, SecondStrategy)
}
_SCHEDULE = f"a schedule of dpca.rules: {', '.join(SCHEDULES)}"
#: The options of rules, what they are made of, and how a sentence calls that.
OPTIONS: dict[str, tuple[tuple[type, ...], str]] = {
    "oversampling": ((Integral,), "a whole number of directions"),
    "forgetting": ((Real,), "a number above 0, up to 1"),
    "schedule": (tuple(SCHEDULES.values()), _SCHEDULE),
    "unit": ((Real, str), f"a positive number, or {MEASURED!r}"),
    "online": ((bool,), "True or False"),
    "orthonormalize_every": ((Integral,), "a whole number of updates"),
    "acceleration": (tuple(SCHEDULES.values()), _SCHEDULE),
    "per_component": ((bool,), "True or False"),
    "growth": ((Real,), "a number, 1 or more"),
    "momentum": ((Real,), "a number, 0 or more"),
    "amnesic": ((Real,), "a number, 0 or more"),
    "tau": ((Real,), "a positive number"),
    "neural_steps": ((Integral,), "a whole number of steps"),
}


def make_rule(
    method: str,
    k: int,
    *,
    center: bool,
    batch_size: int | None,
    seed: int,
    options: Mapping[str, Any],
    n_samples: int | None = None,
) -> Any:
    """Return the rule of a method, which gets its samples in batches of ``batch_size``.

    Parameters
    ----------
    options : mapping of str to value
        Some of `OPTIONS`; those that are None are left to the rule.
    n_samples : int, optional
        Length of the stream, where it is known: the rule is then watched for how far its last part moves the
        components.

    Raises
    ------
    DataError
        For a method that does not exist, an option that the method does not have, or a value that makes no sense.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise DataError(f"method is {method!r}: choose one of {', '.join(METHODS)}")
    chosen = {name: value for name, value in options.items() if value is not None}
    for name, value in chosen.items():
        _check_option(method, name, value)
    known = _fields(method)
    given: dict[str, Any] = {"center": center, "seed": seed}
    given = {name: value for name, value in given.items() if name in known}
    if "schedule" in known and "unit" in known and not chosen.keys() & {"schedule", "unit"}:
        given |= {"schedule": STEPS[method], "unit": None}
    if "acceleration" in known:
        given["acceleration"] = SecondStrategy(seed=seed)
    given |= {name: None if name == "unit" and value == MEASURED else value for name, value in chosen.items()}
    try:
        rule = METHODS[method](k, **given)
    except ValueError as error:
        raise DataError(str(error)) from error
    if batch_size is None:
        size = rule.batch_rows("float32") if method == "incremental-svd" else DEFAULT_BATCH
    else:
        size = batch_size
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise DataError(f"batch_size is {size!r}: give a whole number of samples, at least 1")
    return InBatches(rule if n_samples is None else Watched(rule, n_samples), int(size))


def describe_option(value: Any) -> Any:
    """Return the value of an option as what JSON can hold; see `restore_option`."""
    if type(value).__name__ in SCHEDULES:
        return {"schedule": type(value).__name__, **asdict(value)}
    return value.item() if hasattr(value, "item") else value


def restore_option(value: Any) -> Any:
    """Return the value of an option from what `describe_option` made of it.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it made no such thing.
    """
    if not isinstance(value, dict):
        return value
    values = dict(value)
    return SCHEDULES[values.pop("schedule")](**values)


def _fields(method: str) -> set[str]:
    return {field.name for field in fields(METHODS[method])}


def _check_option(method: str, name: str, value: Any) -> None:
    if name not in _fields(method):
        others = ", ".join(other for other in METHODS if name in _fields(other))
        raise DataError(f"{name} has no meaning for {method}: leave it out, or use one of {others}")
    kinds, words = OPTIONS[name]
    wrong_kind = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if wrong_kind or (isinstance(value, str) and value != MEASURED):
        raise DataError(f"{name} is {value!r}: give {words}")


def check_rank(k: Any, d: int, n: int | None) -> int:
    """Return the number of components as an int, refusing what ``n`` samples of ``d`` attributes cannot have."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise DataError(f"n_components is {k!r}: give a positive integer")
    if k > d:
        raise DataError(f"n_components is {k} but a sample has only {d} attributes: ask for at most that many")
    if n is not None and k > n:
        raise DataError(f"n_components is {k} but there are only {n} samples: ask for at most that many")
    return int(k)


def check_passes(n_passes: Any) -> int:
    """Return the number of passes as an int."""
    if isinstance(n_passes, bool) or not isinstance(n_passes, int | np.integer) or n_passes < 1:
        raise DataError(f"n_passes is {n_passes!r}: give at least 1")
    return int(n_passes)


def draw_seed(random_state: Any) -> int:
    """Return the seed of a fit, from what scikit-learn takes for one."""
    return int(check_random_state(random_state).randint(2**31))
