"""What all jobs share.

`shards` is the pass that writes a store shard by shard. `stages` measures and records the cost of stages.
`input_stack` opens or ingests the stack that a job reads. `dpca.storage.transaction.job` is the skeleton of a job.
"""
