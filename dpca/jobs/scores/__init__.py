"""The main job and its parts: a source in; a model, scores, quality and a report out.

`compression` is the main job, `transform` and `reconstruct` are single steps.
`score_write` writes shard by shard, `fit_and_encode` has the stages of a job with a goal.
"""
