"""The memory and time of a job before it runs.

`plan` tries each stage on a few samples, `plan_words` prints the result.
`stages` records what the stages cost in the end.
"""
