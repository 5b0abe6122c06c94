"""What `bench gpu` measures: kernels built for GPUs anywhere, and on a GPU what they take beside those of others.
Read first: `workloads`, then `kernels`.
May import: what `tuner` may but its jobs' database, and of `bench` its modules and `suite`; torch in `torch_peers`.
"""
