"""Time series analysis of scores: spectra, propagating and extended modes, dynamics, effective sample sizes.

Operators in time commute with the projection on components. The analyses therefore act on the K scores of a fitted
model instead of on the field. Their results hold for the field, up to the variance that the model discards. The
attribute ``share`` of every result is the share of the variance that the model retains. In fields with many scales it
is smaller than the leading maps suggest.

The input is scores (n_samples, ..., n_components) in the order of time: the output of ``transform``, in memory or in
Dask, with or without xarray; a Zarr array of scores; or the path of a store of scores, which contains its model.
"""

from __future__ import annotations

from dpca.timeseries.analytic import HilbertModes, hilbert_eof
from dpca.timeseries.cross_spectra import Blocks, SpectralModes, spod
from dpca.timeseries.delays import ExtendedModes, extended_eof, lagged
from dpca.timeseries.dynamics import Dynamics, dmd
from dpca.timeseries.persistence import CosineContent, EffectiveSamples, cosine_content, effective_samples
from dpca.timeseries.spectra import Spectrum, spectrum

__all__ = [
    "Blocks",
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
