"""What `bench search` measures: how fast the search is, what it finds, and how far its findings can be trusted.
Read first: `searches`, then `agreement` and `knowledge`.
May import: everything but the rivals' own packages.
"""
