"""Tiles: what writes launches of a GPU, each in a module that is named for its class, and what these share.
Read first: `element_launch.ElementLaunch`, then `product_tile.ProductTile`.
May import: `search_space.buffers`, `patterns` and what is below these.
"""
