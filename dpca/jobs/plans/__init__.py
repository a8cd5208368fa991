"""The memory and time of a job before it runs.

`shard_plan` decides whether a job fits the memory. `plan` tries each stage on a few samples, and `plan_words` prints
the result.
"""
