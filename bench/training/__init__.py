"""The base cost model: tasks, measured schedules of theirs, and the fit of the model.
Read first: `tasks.training_tasks`.
May import: everything.
"""
