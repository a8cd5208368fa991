"""One PCA for each part of the attributes: cells (`CellPCA`) and bands (`BandPCA`).

`partitioned` has what both share.
`rank` and `rank_choice` decide how many components each part keeps, `targets` measures a quality target on samples.
"""
