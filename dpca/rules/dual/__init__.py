"""Principal components from the Gram matrix of the samples.

`gram` computes it for blocks of attributes, `weights` solves its eigenproblem, and `components` is the second pass.
"""
