"""Sketches for GPUs, one a file.
Read first: `elements`, which covers every op, then `product_tiles`.
May import: `search_space.patterns`, `sketch` and what is below these.
"""
