"""Synthetic stacks: stores of samples that an image model makes whenever they are read, bit for bit the same anywhere.

`exact` (arithmetic whose bits no machine changes), `model` (what a model is, and how boxes of samples are made), one
file a model, `models` (all of them by name), `store` (the arrays that Zarr sees). `dpca.storage.synthetic.stack` makes
and opens stores.
"""
