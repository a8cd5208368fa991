"""Lossy coding of cells: choice of scores, quantization, and decoding. It uses neither Zarr nor Dask."""
