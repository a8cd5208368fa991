"""Denoising by local PCA: `Denoiser`, and the filters of the cells of shifted grids.

`shrinkage` decides from the singular values of a cell what is noise, `filters` holds and applies what follows from it.
"""
