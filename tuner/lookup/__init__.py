"""Lookups: the schedule to use for a task, from the best measured one down to the default.
Read first: `ladder`; `result` is what comes of it.
May import: what `tuner` may. Nothing heavy is imported before a database is opened.
"""
