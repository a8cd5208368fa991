"""Proofs of what components capture.

`certificate` has the error analysis, rounding included; `certified` applies it to a covariance.
`sampled` estimates the same share from random samples.
"""
