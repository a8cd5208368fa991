"""Fits to samples with missing values."""
