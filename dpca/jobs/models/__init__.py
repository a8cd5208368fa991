"""Jobs that make a model: fit a stack, or follow one that grows.

`live` writes the progress so far to a store.
Other programs read it while the fit runs.
"""
