"""The sketches: one file each, an expert's structure whose numbers the search fixes.
Read first: the generic tiled sketch, which covers every op.
May import: what `search_space` may.
"""
