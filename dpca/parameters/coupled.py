"""Parameters of `MCA` and `CCA`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from dpca.parameters import common
from dpca.parameters.declaration import REQUIRED, always_stored, never_stored, same_as
from dpca.parameters.eof import STREAMING, EOFParameters
from dpca.parameters.kinds import FLAG, choice, number, pair_of, whole

#: Solvers of modes of two fields. "auto" chooses one of the others.
AUTO, COVARIANCE, DUAL = "auto", "covariance", "dual"
#: The extension of a record before its Hilbert transform.
EXPONENTIAL = "exponential"

_N_PCA_MODES = whole(1) | number(above=0, below=1)
_PCA_FIRST = (
    "Number of leading principal components of each field that are analyzed, or the least share of its variance that "
    "they explain. A pair has one value for each field."
)
_SOLVER = (
    '"covariance": the joint covariance of both fields, in one pass. "dual": the Gram matrix of the samples of each '
    'field, then the patterns, in two passes; for few samples. Both are exact. "streaming": the principal components '
    'of each field by `StreamingPCA`, then their time series; requires an integer ``n_pca_modes``. "auto": the first '
    "of these that fits into memory, beginning with the dual form if there are fewer samples than grid points."
)


@dataclass(eq=False, repr=False)
class CoupledParameters:
    """Parameters of both estimators."""

    n_modes: int = same_as(EOFParameters, "n_modes")
    _: KW_ONLY
    dim: str = same_as(EOFParameters, "dim")
    weights: Any = never_stored(
        None,
        common.WEIGHTS | pair_of(common.WEIGHTS),
        "Factors of the anomalies at each grid point, as in `EOF`. A tuple of two has those of each field.",
        shown='None, "coslat", array, or tuple of two of them',
    )
    gaps: str = always_stored(
        "drop",
        choice("drop", "interpolate"),
        "Treatment of grid points that miss some values, as in `EOF`. Each sample must have values in both fields.",
    )
    standardize: Any = always_stored(
        False,
        FLAG | pair_of(FLAG),
        "Divide the anomalies at each grid point by their standard deviation (divisor n). A tuple of two has a value "
        "for each field.",
    )
    detrend: bool = same_as(EOFParameters, "detrend")
    climatology: str | None = same_as(EOFParameters, "climatology")
    hilbert: bool = always_stored(
        False,
        FLAG,
        "Analyze the analytic signal of both fields: complex modes of waves that propagate. Samples must have even "
        "steps.",
    )
    padding: str | None = always_stored(
        EXPONENTIAL,
        choice(EXPONENTIAL),
        'With ``hilbert``, the extension of the record on both sides: "exponential", a decay towards the linear trend, '
        "or None, for a periodic record.",
        none=True,
    )
    decay: float = always_stored(
        0.2, number(above=0), "Decay length of the extension, relative to the length of the record."
    )
    n_passes: int = always_stored(2, whole(1), 'Passes of the solver "streaming", see `StreamingPCA`.')
    solver: str = always_stored(AUTO, choice(AUTO, COVARIANCE, DUAL, STREAMING), _SOLVER)
    batch_size: int | None = same_as(EOFParameters, "batch_size")
    oversampling: int | None = same_as(EOFParameters, "oversampling")
    random_state: Any = same_as(EOFParameters, "random_state")
    memory_budget: int | None = same_as(EOFParameters, "memory_budget")


@dataclass(eq=False, repr=False)
class MCAParameters(CoupledParameters):
    """Parameters of `MCA`."""

    _: KW_ONLY
    n_pca_modes: Any = always_stored(
        None,
        _N_PCA_MODES | pair_of(_N_PCA_MODES),
        f"{_PCA_FIRST} None analyzes all of them.",
        shown="int, float, tuple of two of them, or None",
    )


@dataclass(eq=False, repr=False)
class CCAParameters(CoupledParameters):
    """Parameters of `CCA`."""

    _: KW_ONLY
    n_pca_modes: Any = always_stored(
        REQUIRED,
        _N_PCA_MODES | pair_of(_N_PCA_MODES),
        f"{_PCA_FIRST} The more are analyzed, the higher are the correlations that noise has, too: use far fewer than "
        "there are samples.",
        shown="int, float or tuple of two of them",
    )
