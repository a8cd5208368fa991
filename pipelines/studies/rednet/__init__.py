"""Classifiers on the scores of cells: chapter 5 of the thesis (Alakkari 2020) computed again, and ablations."""
