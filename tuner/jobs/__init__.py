"""Tuning jobs: lease one, search, confirm what was found, time the whole model.
Read first: `job.TuningJob`.
May import: what `tuner` may, and `running`.
"""
