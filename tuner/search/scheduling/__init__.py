"""The scheduler: which task of a model gets the next trials, their expected gain, and when the search should end.
Read first: `scheduler.TaskScheduler`.
May import: what `tuner` may, and of `tuner` itself `models` and `text`.
"""
