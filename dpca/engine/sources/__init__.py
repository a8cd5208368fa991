"""Sources of batches.

`source` reads arrays of Zarr, Dask and numpy.
The other sources wrap one: in random order, some samples, sliding windows, computed samples.
"""
