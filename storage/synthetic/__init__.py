"""Synthetic stacks: stores with samples that an image model computes when they are read, bit-identical everywhere.

`exact` has arithmetic with the same bits on every machine, and `model` the base class of models. Each model has its own
file, and `models` lists them by name. `store` is the Zarr store that computes chunks. `stack` creates and opens
synthetic stacks.
"""
