"""What all rules are made of.

A rule has the functions `init`, `update`, `merge` and `finish` on a state of named arrays.
The other files have the parts that rules share: centering, mini-batches, step sizes, orthonormal rows.
"""
