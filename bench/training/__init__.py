"""The base cost model: tasks, measured schedules of theirs, and the model that learns from these.
Read first: `tasks.training_tasks`.
May import: everything.
"""
