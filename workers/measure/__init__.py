"""Work of a child process on a candidate: check it, time it, notice noise.
Read first: `measure`.
May import: `workers.pool` and what is below it.
"""
