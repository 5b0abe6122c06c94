"""Peers: other runtimes, to compare with. They run the same model on the same inputs with as many threads,
or on the same GPU.
Read first: `runtimes`, then `cuda_runtimes`.
May import: what `tuner` may.
"""
