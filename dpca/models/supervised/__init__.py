"""Models that learn labels.

`StreamingRidgeClassifier` learns classes in one pass over samples that need not fit into memory.
It reads images, scores or features.
"""
