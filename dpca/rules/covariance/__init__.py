"""Rules that sum products of samples: covariances, Gram matrices, moments.

Their update is a sum over the batch, so workers sum parts of it and the result does not depend on the order.
Iterative solvers multiply a basis by the covariance, one pass a step.
"""
