"""Dask clusters: connect to one, start one here, or start one that a file describes.

Own clusters are closed to other users: `tls` makes their certificates, `private` their folders.
`forking` starts the process from which workers are forked; `preloading` is what it imports first, and `worker_setup` is
what each worker runs first. With `parent`, processes end with the program that started them.
"""
