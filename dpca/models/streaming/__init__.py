"""`StreamingPCA`: one pass over data of any size, by any update rule of the field.

`streaming_methods` names the rules, `execution` decides how Dask runs them.
The other files continue a fit: batch by batch, interrupted, or with scores that follow the basis.
"""
