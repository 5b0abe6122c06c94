"""Chains: pieces that feed each other, run block by block so that what passes between them stays in the cache.
Read first: `chain.Chain`.
May import: what `search_space` may, `nests` and `products`.
"""
