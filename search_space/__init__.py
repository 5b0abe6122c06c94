"""What could be built: knobs, spaces, schedules, and the sketches that lower a schedule to a kernel.
Read first: `schedule.Schedule`.
May import: `graph`, `codegen`.
"""
