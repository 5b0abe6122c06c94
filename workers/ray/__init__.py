"""Pools on a Ray cluster.
Read first: `pool`.
May import: `workers.device`, `workers.local` and what is below these; ray.
"""
