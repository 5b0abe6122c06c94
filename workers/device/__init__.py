"""A device: building for it, timing on it, comparisons in fresh processes.
Read first: `device`.
May import: `workers.measure`, `workers.sandbox` and what is below these.
"""
