"""Stores appear complete or not at all.

`job` is the skeleton of every job. `workspace` is its journal in its partial store, `markers` says which of its units
are done; `claim` and `lease` keep two jobs apart.
`outputs` checks outputs before anything is written. `checkpoints` keeps what an interrupted run resumes from.
"""
