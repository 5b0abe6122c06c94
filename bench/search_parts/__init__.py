"""The parts of `bench search`: how fast the search is, what it finds, and how reliable its results are.
Read first: `searches`, then `agreement` and `knowledge`.
May import: everything but the rivals' own packages.
"""
