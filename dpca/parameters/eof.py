"""Parameters of `EOF`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import REQUIRED, always_stored, never_stored
from dpca.parameters.kinds import FLAG, TEXT, choice, whole

#: The solver `StreamingPCA`: a few passes in any order of the samples, in constant memory.
STREAMING = "streaming"


@dataclass(eq=False, repr=False)
class EOFParameters:
    """Parameters of `EOF`."""

    n_modes: int = always_stored(REQUIRED, whole(1), "Number of modes.")
    _: KW_ONLY
    dim: str = always_stored(
        "time", TEXT, "The time dim, along which the samples lie. If dims have no names, it is the first axis."
    )
    weights: Any = never_stored(
        None,
        common.WEIGHTS,
        'Factors of the anomalies at each grid point. "coslat": the square root of the cosine of the latitude, so that '
        "the variance is weighted by area. Or an array that numpy can broadcast to a sample, or a ``DataArray`` with "
        "some of the dims of a sample. " + common.OF_VARIABLES,
        shown='None, "coslat", array, list or dict',
    )
    gaps: str = always_stored(
        "drop",
        choice("drop", "interpolate", "iterate"),
        'Treatment of grid points that miss some values. "drop" excludes them and reports their number '
        '(`GapWarning`). "interpolate" fills gaps linearly along the coordinate of ``dim``. "iterate" fills gaps with '
        "the expectation under the modes and repeats the fit until it converges (Beckers & Rixen 2003; Tipping & "
        "Bishop 1999). Grid points without any value are always excluded. Samples without any value are ignored and "
        'have NaN scores, except that "interpolate" fills them.',
    )
    missing_value: Any = common.missing_value("Of several variables, it marks those of each.")
    standardize: bool | str = always_stored(
        False,
        FLAG | choice(common.VARIABLE),
        'Divide the anomalies at each grid point by their standard deviation (divisor n). "variable": divide all '
        "anomalies of a variable by the same number, so that each variable has the total variance 1.",
    )
    detrend: bool = always_stored(
        False, FLAG, "Subtract the linear trend of each grid point along the coordinate of ``dim``."
    )
    climatology: str | None = always_stored(
        None,
        choice("month", "season", "dayofyear", "hour"),
        "Subtract the mean of each part of the year or the day instead of the mean of all samples.",
    )
    n_passes: int = always_stored(
        2,
        whole(1),
        'Passes of the solver "streaming". If the spectrum has a gap, ``captured_bound_`` is close to 1 after these; '
        "see `StreamingPCA`. If the covariance fits into memory, one pass is exact.",
    )
    solver: str = always_stored(
        STREAMING,
        TEXT,
        '"streaming" for `StreamingPCA`, or a solver of `PCA`: "auto", "covariance", "dual", "randomized" and others.',
    )
    batch_size: int | None = always_stored(
        None,
        whole(1),
        'Of the solver "streaming". By default a batch takes 32 MiB in float32, but has 100 to 1,024 samples.',
    )
    oversampling: int | None = always_stored(None, whole(0), 'Of the solver "streaming", see `StreamingPCA`.')
    random_state: Any = common.random_state("Seed of the random numbers.")
    memory_budget: int | None = common.memory_budget()
