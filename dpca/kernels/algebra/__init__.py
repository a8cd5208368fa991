"""Dense linear algebra on arrays of any library.

`linalg` has the products and decompositions of the rules, chosen by measurement; `linalg_int8` multiplies bytes
exactly. `rounding` and `bounded_eigh` bound the error of what is computed.
"""
