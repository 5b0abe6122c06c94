"""The replay: whole spaces measured once, so that searches can be compared without measuring anything.
Read first: `pool.ReplayPool`.
May import: what `tuner` may, and of `bench` its modules and `suite`.
"""
