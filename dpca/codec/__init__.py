"""Which scores of cells are kept, with what step, and back to samples: integers in and out, no Zarr and no Dask."""
