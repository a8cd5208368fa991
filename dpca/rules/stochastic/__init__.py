"""Stochastic gradient and block power rules, one mini-batch a step.

Oja, Sanger, Krasulina, block power and its accelerations, similarity matching.
Their step sizes are in `dpca.rules.base.schedules`.
"""
