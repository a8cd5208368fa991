"""The base of all estimators.

An estimator fits any source, transforms lazily or in memory, and is saved to a Zarr store. `estimator` has these steps.
The other files have what it is made of: parameters, sources, passes, names of axes, callbacks and stores.
"""
