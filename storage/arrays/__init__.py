"""Zarr arrays: layout, shards, reading and writing.

Every array is written one whole shard at a time and read with every check that its store allows.
`training_batches` reads samples for training, `coordinates` and `labelled` keep the names of axes.
"""
