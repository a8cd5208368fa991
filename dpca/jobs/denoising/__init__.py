"""Stacks without noise, and stacks without gaps."""
