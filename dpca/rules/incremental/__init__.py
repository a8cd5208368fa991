"""Rules that keep a small basis and turn it with each batch: incremental SVD, CCIPCA, incremental PCA.

Incremental SVD merges, so segments of a stack are folded side by side.
`truncation` and `nystrom` have its small eigenproblems.
"""
