"""The strategies: one file each, a way to choose what is measured next.
Read first: `evolutionary.Evolutionary`.
May import: what `tuner` may, and of `tuner` itself `history`.
"""
