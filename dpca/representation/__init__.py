"""Representations: what encodes samples as scores and decodes them again, and how scores lie in a store."""
