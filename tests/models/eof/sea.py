"""Synthetic sea surface temperatures with known modes; does not import dpca."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

N, LAT, LON = 72, 7, 9


def made(n: int = N, seed: int = 0) -> xr.DataArray:
    """Sea surface temperatures, NaN over land, of a spectrum that falls by a quarter a mode."""
    rng = np.random.default_rng(seed)
    maps = np.linalg.qr(rng.normal(size=(LAT * LON, 20)))[0].T
    series = np.linalg.qr(rng.normal(size=(n, 20)))[0] * 0.75 ** np.arange(20) * 30
    values = 280 + series @ maps + 0.01 * rng.normal(size=(n, LAT * LON))
    values = values.reshape(n, LAT, LON)
    values[:, rng.random((LAT, LON)) < 0.3] = np.nan
    coords = {
        "time": pd.date_range("1990-01-01", periods=n, freq="MS"),
        "lat": ("lat", np.linspace(-75, 80, LAT), {"units": "degrees_north"}),
        "lon": np.arange(0.0, 360, 40),
    }
    attrs = {"units": "K", "long_name": "sea surface temperature"}
    return xr.DataArray(values, coords, ("time", "lat", "lon"), name="sst", attrs=attrs)


SST = made()
COSLAT = np.sqrt(np.cos(np.deg2rad(SST.lat.values)))[:, None] * np.ones(LON)
