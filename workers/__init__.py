"""What is fast: build, check and time a candidate in a process that can be killed, and the pools of such processes.
Read first: `pool.Pool`.
May import: `search_space`, `graph`, `codegen`. Home of ray.
"""
