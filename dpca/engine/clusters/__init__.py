"""Dask clusters: connect to one, start one here, or start one that a file describes.

Own clusters are closed to other users: `tls` makes their certificates, `private` their folders.
`worker_setup` is what each worker process runs first.
"""
