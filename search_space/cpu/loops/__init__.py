"""How the sketches for processors write loops: register tiles, chunks, passes along rows, blocks of chains.
Read first: `nest`, then `tile`.
May import: `search_space.patterns` and what is below it.
"""
