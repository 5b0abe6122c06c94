"""Sums of products: tasks seen as matrix products and convolutions, what their tiles cost, Winograd's transforms.
Read first: `product.Product`.
May import: what `search_space` may, and `nests`.
"""
