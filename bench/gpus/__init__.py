"""`bench gpu`: kernels built for GPUs on any machine, and timed on a GPU beside those of others.
Read first: `workloads`, then `kernels`.
May import: what `tuner` may but its jobs' database, and of `bench` its modules, `rivals` and `suite`; torch in
`torch_peers` and `cublaslt`.
"""
