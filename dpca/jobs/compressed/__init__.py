"""Jobs on compressed stores: encode, append, fit again, compare.

`encode_trials` chooses the step on some samples, `encode_write` writes shard by shard and measures every sample, and
`encode_memory` plans the memory of that. `cell_choice` chooses the cells by all bytes of the store, and `cell_trial`
finds these for one kind of cells. `verify_quality` compares a store with its original samples.
"""
