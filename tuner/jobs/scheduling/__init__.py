"""Which task of a model gets the next trials, what more of them are expected to bring, and when little is left to gain.
Read first: `scheduler.TaskScheduler`.
May import: what `tuner` may, and of `tuner` itself `models` and `text`.
"""
