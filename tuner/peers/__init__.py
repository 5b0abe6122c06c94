"""Peers: other runtimes, to compare with. They run the same model on the same inputs with as many threads.
Read first: `runtimes`.
May import: what `tuner` may.
"""
