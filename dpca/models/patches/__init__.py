"""Components of all overlapping patches of a stack.

`PatchPCA` finds them, like the filters of a first convolution.
`PatchCascade` stacks layers of them into features for a linear classifier.
"""
