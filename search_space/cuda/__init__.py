"""Sketches for GPUs, one a file: its space, and what its points mean in words. `tiles` writes their launches.
Read first: `elements`, which covers every op, then `product_tiles`.
May import: `search_space.patterns`, `sketch` and what is below these.
"""
