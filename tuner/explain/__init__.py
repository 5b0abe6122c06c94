"""Explanations of jobs, tasks and schedules as plain data, which pages and reports show: curves, rooflines, predictions
beside measurements, and a schedule in sentences, as a nest of loops and as texts.
Read first: `curves` for a job, `reasons` for a schedule.
May import: what `tuner` may, and of its packages `lookup` and `models`. Nothing here draws.
"""
