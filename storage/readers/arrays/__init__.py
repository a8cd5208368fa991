"""Readers of files with arrays.

HDF5, netCDF, NIfTI, IDX, files of NumPy, molecular trajectories, Zarr, and xarray arrays. Samples are on the first
axis, or on the axis that an option names.
"""
