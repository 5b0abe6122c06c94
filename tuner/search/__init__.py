"""Tuning jobs: lease one, search, confirm the best schedules, time the whole model.
Read first: `job.TuningJob`.
May import: what `tuner` may, and `session`.
"""
