"""Building, checking and timing candidates in processes that can be killed, and pools of such processes.
Read first: `pool.Pool`.
May import: `search_space`, `graph`, `codegen`. Home of ray.
"""
