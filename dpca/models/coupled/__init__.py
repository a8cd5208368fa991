"""Estimators of modes that two fields share: maximum covariance and canonical correlation analysis.

Import their names from `dpca` or `dpca.models`.
"""
