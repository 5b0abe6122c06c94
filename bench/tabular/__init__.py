"""Tabular spaces: measured completely once, so that searches can be compared without measurements.
Read first: `pool.ReplayPool`.
May import: what `tuner` may, and of `bench` its modules and `suite`.
"""
