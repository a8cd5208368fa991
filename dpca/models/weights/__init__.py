"""Weights of attributes: `attribute_weights` checks them, `with_weights` is the base of estimators that have them."""
