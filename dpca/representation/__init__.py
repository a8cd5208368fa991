"""Representations: encode samples as scores, decode them again, and define the layout of stored scores."""
