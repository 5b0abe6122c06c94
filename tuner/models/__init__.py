"""Models as their tasks: opened, put together from measured alternatives, given inputs, read in a confined child.
Read first: `model.Model`.
May import: what `tuner` may, but none of its other packages.
"""
