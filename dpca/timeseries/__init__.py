"""What time functions tell: spectra, propagating and extended modes, dynamics, and how many samples are independent.

Operators in time commute with the projection on components: they act on the K scores of a fitted model instead of on
the field, and what they find is that of the field up to the share of its variance that the model does not keep. Every
result states the share that it stands on, in ``share``: fields of many scales keep less of it than their leading maps
suggest.

Time functions are scores (n_samples, ..., n_components) in the order of time: what ``transform`` returns, in memory or
in Dask, with or without xarray; a Zarr array of them; or the path of a store of scores, which holds its model itself.
"""

from __future__ import annotations

from dpca.timeseries.analytic import HilbertModes, hilbert_eof
from dpca.timeseries.cross_spectra import SpectralModes, spod
from dpca.timeseries.delays import ExtendedModes, extended_eof, lagged
from dpca.timeseries.dynamics import Dynamics, dmd
from dpca.timeseries.persistence import CosineContent, EffectiveSamples, cosine_content, effective_samples
from dpca.timeseries.spectra import Spectrum, spectrum

__all__ = [
    "CosineContent",
    "Dynamics",
    "EffectiveSamples",
    "ExtendedModes",
    "HilbertModes",
    "SpectralModes",
    "Spectrum",
    "cosine_content",
    "dmd",
    "effective_samples",
    "extended_eof",
    "hilbert_eof",
    "lagged",
    "spectrum",
    "spod",
]
