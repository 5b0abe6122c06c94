"""The strategies: one file each, a way to choose what is measured next.
Read first: `strategy.Strategy`, then `evolutionary.Evolutionary`.
May import: what `tuner` may.
"""
