"""The page of a task, and that of one of its schedules: `page` and `candidate`.

`schedules` is what both say of schedules, `analysis` what the cost model and the roofline say of a task's trials.
"""
