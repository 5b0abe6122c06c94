"""Sums of products: tasks seen as matrix products and convolutions, and what their tiles cost.
Read first: `product.Product`.
May import: what `search_space` may, and `nests`.
"""
