"""Grids: pieces as launches of a GPU, the part that its sketches share.
Read first: `elements.Elements`.
May import: what `search_space` may, `nests`, `products` and `rows`.
"""
