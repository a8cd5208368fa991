"""Object stores, web servers and clusters.

`network` and `objects` read and write through fsspec, `object_store` is Zarr's view of it.
`tasks` runs calls on a cluster or on local threads; `clusters` turns the failures of a cluster into one error.
`memory` knows how much memory a task may use, on a worker or on this machine.
"""
