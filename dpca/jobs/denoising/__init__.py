"""The job that denoises a stack."""
