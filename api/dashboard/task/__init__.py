"""The pages of a task, of one of its schedules, and of its trials explored: `page`, `candidate` and `explorer`.

`view` is what the page of a task says, `charts` draws it, `explorer_view` is what the explorer says. `schedules` is
what they say of schedules alike, `analysis` what the cost model and the roofline say of a task's trials, `columns`
what can be asked of each trial, `importance` which knobs matter.
"""
