"""Tiles: fused stages as launches of a GPU, the part that its sketches share.
Read first: `elements.Elements`.
May import: `search_space.buffers`, `patterns` and what is below these.
"""
