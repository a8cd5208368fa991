"""Stores appear complete or not at all.

`workspace` is the journal of a job in its partial store; `claim` and `lease` keep two jobs apart.
`outputs` checks outputs before anything is written. `checkpoints` keeps what an interrupted run resumes from.
"""
