"""Sketches for processors, one a file.
Read first: `generic`, which covers every op, then `contraction`.
May import: `search_space.patterns`, `sketch` and what is below these.
"""
