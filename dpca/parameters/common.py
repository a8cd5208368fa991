"""Parameters that many estimators have."""

from __future__ import annotations

from typing import Any

from dpca.choices import INFINITE
from dpca.parameters.declaration import Option, StoragePolicy, parameter
from dpca.parameters.kinds import FLAG, SEED, TEXT, array, choice, number


def random_state(text: str, kept: StoragePolicy = StoragePolicy.NEVER) -> Any:
    """Return the field of the seed. ``text`` states what is random."""
    return parameter(None, SEED, text, kept=kept, shown="int, RandomState or None")


def memory_budget() -> Any:
    """Return the field of the memory of a task."""
    return parameter(
        None,
        number(least=0),
        "Most bytes that one task may use, in addition to the memory that its process already holds. Default: from "
        "the memory limits of the workers or of the machine.",
        kept=StoragePolicy.NEVER,
        shown="int, optional",
    )


def flatten(scores: str, axes: str) -> Any:
    """Return the field for scores along one axis."""
    return parameter(
        False,
        FLAG,
        f"Whether `transform` returns the {scores} of a sample along one axis, (n_samples, {axes}), as a scikit-learn "
        "``Pipeline`` expects. `inverse_transform` supports both forms.",
    )


def whiten() -> Any:
    """Return the field for scores of unit variance."""
    return parameter(
        False,
        FLAG,
        "Whether `transform` divides each score by the standard deviation along its component, for unit variance. "
        "`inverse_transform` multiplies by it.",
    )


def keep_state(more: str = "") -> Any:
    """Return the field for models that `partial_fit` can continue."""
    return parameter(
        False,
        FLAG,
        "Whether `partial_fit` can continue after `fit` or `load`. If True, the model keeps the state of the fit in "
        f"memory, as large as the state of `partial_fit`, and `save` stores it.{more}",
    )


#: How weights of several variables are given.
OF_VARIABLES = "For several variables, a list or a dict with the weights of each, which may be single numbers."
#: Standardize variables as a whole.
VARIABLE = "variable"
#: The name of weights from latitudes.
COSLAT = "coslat"
#: The kind of weights of attributes.
WEIGHTS = choice(COSLAT) | array("an array of numbers")

#: How estimators of several passes fit samples with missing values.
SEVERAL_PASSES = (
    "by passes of expectation-maximization until held-out values are not predicted better (Tipping & Bishop 1999; Ilin "
    "& Raiko 2010). Without missing values the fit is the same as without this parameter, except for a pass that "
    "counts values."
)


def gaps(how: str, more: str) -> Any:
    """Return the field for the treatment of missing values."""
    return parameter(
        "reject",
        choice("reject", "iterate"),
        'Treatment of missing values: NaN, ``missing_value`` and masked values. "reject" raises `DataError`. "iterate" '
        f"fits probabilistic PCA to the values that are there, {how} {more}",
        option=Option("--gaps", help="NaN is an error, or a missing value: several passes fit what is there"),
    )


def weights(
    more: str = "", *, passes: str = "This takes one more pass, so `partial_fit` requires positive weights."
) -> Any:
    """Return the field for the weights of attributes."""
    return parameter(
        None,
        WEIGHTS,
        "Factors, at least 0, that the attributes are multiplied by, as in `EOF`: the components are those of samples "
        "minus their mean times weights. An array that numpy can broadcast to a sample, or a ``DataArray`` with some "
        'of the dims of a sample; or "coslat", the square root of the cosine of the latitude, for samples with such a '
        f"coordinate. An attribute of weight 0 does not count, and its reconstruction is its mean. {passes} "
        f"{more}".rstrip(),
        kept=StoragePolicy.AS_ARRAY,
        shown='None, "coslat" or array',
        option=Option(
            "--weights",
            "W",
            f'factors of the attributes: "{COSLAT}", the square root of the cosine of the latitude, or the path of a '
            "map with the shape of a sample, or of one sample (Zarr, .npy, ...)",
            kind=choice(COSLAT) | TEXT,
        ),
    )


def standardize() -> Any:
    """Return the field for attributes of unit variance."""
    return parameter(
        False,
        FLAG | choice(VARIABLE),
        'Divide each attribute by its standard deviation (divisor n), as in `EOF`. "variable": divide all attributes '
        "of a variable by the same number, so that each variable has the total variance 1. ``weights`` multiply the "
        "result. This takes a pass over all samples, so `partial_fit` does not support it. Constant attributes have "
        "weight 0. A store contains the factors as ``weights``.",
        kept=StoragePolicy.AS_ARRAY,
        option=Option(
            "--standardize",
            VARIABLE,
            f"divide each attribute by its standard deviation, or with '{VARIABLE}' all attributes of a variable by "
            "the same number, so that each variable has the same total variance; in one more pass",
            kind=choice(VARIABLE),
            const=True,
        ),
    )


def missing_value(requires: str = 'Requires ``gaps="iterate"``.') -> Any:
    """Return the field for the number that marks missing values."""
    return parameter(
        None,
        number() | choice(INFINITE),
        f'A number that marks missing values, in addition to NaN, or "infinite" for both infinities. {requires}',
        shown='int, float, "infinite" or None',
        option=Option(
            "--missing-value",
            "X",
            help=f'a number that marks missing values, in addition to NaN, or "{INFINITE}" for both infinities, which '
            "compressed stores keep; requires --gaps iterate",
        ),
    )
