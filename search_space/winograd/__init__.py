"""Winograd's convolutions: which tasks are such, their tiles, the transforms and the steps that they take.
Read first: `plan.Plan`.
May import: what `search_space` may, `products` and `nests`.
"""
