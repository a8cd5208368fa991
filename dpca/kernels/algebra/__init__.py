"""Dense linear algebra on arrays of any library.

`linalg` has the products and decompositions of the rules, chosen by measurement; `integers` decides which products are
exact. `rounding` and `bounded_eigh` bound the error of what is computed.
"""
