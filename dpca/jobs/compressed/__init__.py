"""Jobs on compressed stores: encode, append, fit again, compare.

`encode_trials` chooses the step on some samples, `encode_write` writes shard by shard and measures every sample.
`cell_choice` chooses the cells by all bytes of the store.
"""
