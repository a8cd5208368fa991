"""Numerical kernels: array namespaces, dense and 8-bit products, and the arithmetic that all other packages use."""
