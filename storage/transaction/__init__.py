"""Stores appear complete or not at all.

`job` is the skeleton of every job. `workspace` is its journal and done-markers, beside the partial store; `claim` and
`lease` keep two jobs apart.
`outputs` checks outputs before anything is written. `checkpoints` keeps what an interrupted run resumes from.
"""
