"""The update rules of `StreamingPCA` by name, and rule objects as plain values for stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from dpca.parameters.streaming import AUTO, RULE_CLASSES
from dpca.representation.base import array_digest
from dpca.rules.base.basis import StreamingRule
from dpca.rules.base.minibatch import InBatches
from dpca.rules.base.schedules import SCHEDULES, FirstStrategy
from dpca.rules.base.watched import Watched
from dpca.rules.certificates.sampled import Sampled
from dpca.rules.incremental.incremental_svd import IncrementalSVD
from dpca.rules.kernel.gains import Gains
from dpca.storage.arrays.labelled import is_labelled
from dpca.storage.errors import DataError
from dpca.storage.given_numbers import whole_number

# Values of options of rules that are not plain values.
_OBJECTS: dict[str, Any] = {**SCHEDULES, Gains.__name__: Gains}
# The eigenproblem of a covariance of this size takes a few seconds.
_LARGEST_COVARIANCE = 4096
_BATCH_BYTES, _FEWEST_SAMPLES = 2**28, 100
# Samples that are read together: at most this number if batches are smaller, and at most this number of bytes.
_AT_ONCE, _BYTES_AT_ONCE = 256, 2**26
# One more direction for each five components, if these are more than the default of the rule.
_FURTHER = 5
#: Fields of a rule that an estimator sets.
_FILLED = ("n_components", "center", "seed", "wide")


def rule_class(method: str) -> type[StreamingRule]:
    """Return the class of a method's rule.

    Raises
    ------
    DataError
        If the method does not exist.
    """
    if not isinstance(method, str) or method not in RULE_CLASSES:
        choices = ", ".join((AUTO, *RULE_CLASSES))
        raise DataError(f"method is {method!r}: use one of {choices}, or a rule of dpca.rules")
    module, name = RULE_CLASSES[method].rsplit(".", 1)
    found: type[StreamingRule] = getattr(import_module(f"dpca.rules.{module}"), name)
    return found


def method_name(method: str | StreamingRule) -> str:
    """Return the name of a method in messages."""
    return method if isinstance(method, str) else type(method).__name__


def default_method(k: int, n_features: int, options: Mapping[str, Any]) -> str:
    """Return the default method for ``k`` components of d = ``n_features`` attributes.

    This is "covariance" up to d = 8 q + 400 and at most 4,096, with the q directions that "incremental-svd" keeps. For
    larger d, or if ``options`` of that rule are given, it is "incremental-svd". A sample costs d^2 operations by
    "covariance" and d (4 q + 200) by "incremental-svd", which multiplies smaller matrices at half the speed. In
    float32 on one thread, the measured times are equal at d = 1,050 for q = 65, 1,300 for 110, 2,000 for 200 and above
    3,072 for 400. Exact products of bytes make both faster by similar factors.
    """
    few = n_features <= min(2 * (4 * (k + default_oversampling(k)) + 200), _LARGEST_COVARIANCE)
    given = any(value is not None for value in options.values())
    return "covariance" if few and not given else "incremental-svd"


def default_oversampling(k: int) -> int:
    """Return how many directions beyond ``k`` components "incremental-svd" keeps by default.

    For 500 components of 4,000 samples with the spectrum of photographs, 60 more miss .11 % of the variance of others
    beyond the exact solution, and 100 more .08 %.
    """
    return max(IncrementalSVD.oversampling, k // _FURTHER)


@dataclass(frozen=True)
class RuleStream:
    """The samples that a streaming rule reads.

    Parameters
    ----------
    n_samples : int, optional
        Length of the stream. If given, the movement of the components in the last part of the stream is measured.
    n_features : int
        Attributes of a sample.
    itemsize : int
        Bytes of an attribute.
    sampled : bool
        Whether to keep some samples of the stream to estimate the captured share, if the rule supports it.
    ends : bool
        Whether no samples follow the ``n_samples``. Then the rule keeps no more directions than samples.
    """

    n_samples: int | None = None
    n_features: int = 1
    itemsize: int = 4
    sampled: bool = False
    ends: bool = False


def make_rule(
    method: str | StreamingRule,
    k: int,
    *,
    center: bool,
    batch_size: int | None,
    seed: int,
    options: Mapping[str, Any] | None = None,
    stream: RuleStream = RuleStream(),
) -> Any:
    """Return the rule of a method, with samples in batches of ``batch_size``.

    The default batch size is that of the rule, but at most 256 MiB in float32 (128 MiB of bytes for `IncrementalSVD`,
    which multiplies them as they are), at least 100 samples, and at most all samples. For `IncrementalSVD` with q
    directions it is at least 3 q samples, if these are at most 256 MiB as given. Then the parts of a step that do not
    depend on the number of samples are a fifth of its cost.

    Parameters
    ----------
    method : str or StreamingRule
        A name in `RULE_CLASSES`, or a rule with its own options. This function sets its ``n_components``, ``center``
        and ``seed``, and the seeds of schedules that are None.
    options : mapping of str to value, optional
        Further options of the rule; None is the default of the rule.
    stream : RuleStream
        The samples that the rule will read.

    Raises
    ------
    DataError
        If the method does not exist, it does not have an option, or a value is invalid.
    """
    n_samples, n_features = stream.n_samples, stream.n_features
    try:
        rule = method if isinstance(method, StreamingRule) else rule_class(method)()
        known = {field.name for field in fields(rule)}
        chosen = {name: value for name, value in (options or {}).items() if value is not None}
        for name in chosen.keys() - known:
            raise DataError(f"the method {method_name(method)} does not support {name}: omit it")
        given = {"n_components": k, "center": center, "seed": seed, **chosen}
        if rule is not method and isinstance(rule, IncrementalSVD):
            given = {"oversampling": default_oversampling(k), **given}
        rule = replace(rule, **{name: value for name, value in given.items() if name in known})
        rule = replace(rule, **_seeded(rule, seed))
        if stream.ends and n_samples is not None and isinstance(rule, IncrementalSVD):
            rule = replace(rule, oversampling=min(rule.oversampling, max(0, n_samples - k)))
    except ValueError as error:
        raise DataError(str(error)) from error
    if batch_size is None:
        fewest, dtype, most = _FEWEST_SAMPLES, "float32", _BATCH_BYTES // (4 * n_features)
        if isinstance(rule, IncrementalSVD):
            fewest = max(fewest, min(3 * (k + rule.oversampling), _BATCH_BYTES // (stream.itemsize * n_features)))
            if stream.itemsize == 1:
                dtype, most = "uint8", 2 * most
        size = min(rule.batch_rows(dtype), max(fewest, most))
        size = min(size, n_samples or size)
    else:
        size = whole_number(batch_size, "batch_size", 1)
    sampled = stream.sampled and isinstance(rule, IncrementalSVD) and rule.forgetting == 1
    watched = rule if n_samples is None else Watched(rule, n_samples)
    at_once = min(max(_AT_ONCE, size), max(1, _BYTES_AT_ONCE // (stream.itemsize * n_features)))
    return InBatches(Sampled(watched) if sampled else watched, size, at_once=at_once)


def _seeded(rule: StreamingRule, seed: int) -> dict[str, Any]:
    """Return the random schedules of the rule that have no seed, with a seed."""
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    drawing = {name: value for name, value in values.items() if isinstance(value, FirstStrategy)}
    return {name: replace(value, seed=seed) for name, value in drawing.items() if value.seed is None}


def describe_option(value: Any) -> Any:
    """Return a parameter as JSON values, an array as its hash; see `restore_option`.

    Raises
    ------
    DataError
        If it is a rule that is not in `RULE_CLASSES`, or another object except gains and `SCHEDULES`.
    """
    if is_labelled(value):
        return [list(map(str, value.dims)), array_digest(np.asarray(value))]
    if isinstance(value, np.ndarray) and value.ndim:
        return array_digest(value)
    if isinstance(value, list | tuple):
        return [describe_option(one) for one in value]
    if not is_dataclass(value) or isinstance(value, type):
        return value.item() if hasattr(value, "item") else value
    own = {field.name: describe_option(getattr(value, field.name)) for field in fields(value)}
    if _OBJECTS.get(type(value).__name__) is type(value):
        return {"schedule": type(value).__name__, **own}
    path = f"{type(value).__module__.removeprefix('dpca.rules.')}.{type(value).__name__}"
    for name, known in RULE_CLASSES.items():
        if path == known:
            return {"method": name, "options": {name: own[name] for name in own if name not in _FILLED}}
    raise DataError(
        f"{value!r} cannot be stored: use a rule of StreamingPCA's methods, with schedules and gains of dpca.rules"
    )


def restore_option(value: Any) -> Any:
    """Return the parameter from the result of `describe_option`.

    Raises
    ------
    DataError, KeyError, TypeError, ValueError
        If ``value`` is not such a result.
    """
    if isinstance(value, list):
        return tuple(map(restore_option, value))
    if not isinstance(value, dict):
        return value
    if "method" in value:
        return rule_class(value["method"])(**{name: restore_option(v) for name, v in value["options"].items()})
    values = {name: restore_option(own) for name, own in value.items()}
    return _OBJECTS[values.pop("schedule")](**values)


def with_former_options(method: Any, stored: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return the parameter "method" if a store of format 1.0 has options of its rule among the parameters.

    None is the default of the rule, and the unit "measured" is now None.
    """
    options = {name: restore_option(value) for name, value in stored.items() if name not in known and value is not None}
    if not options:
        return {}
    if options.get("unit") == "measured":
        options["unit"] = None
    return {"method": rule_class(method)(**options)}
