"""Folds: one rule over all batches of a source, as a Dask graph.

`plan` decides on segments and memory before anything runs, `fold` runs the plan, `fold_tasks` has the tasks.
`checkpoint` resumes an interrupted fold, `callbacks` calls back between two batches.
"""
