"""Readers of files that hold arrays.

HDF5, netCDF, NIfTI, IDX, numpy's files, raw bytes, molecular trajectories and Zarr.
Samples are on the first axis, or on the axis that an option names.
"""
