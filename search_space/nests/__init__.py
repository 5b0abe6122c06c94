"""Nests: a task as pieces, and the register-tiled loops of one piece, which all CPU sketches share.
Read first: `pieces.Piece`, then `nest.Nest`.
May import: what `search_space` may.
"""
