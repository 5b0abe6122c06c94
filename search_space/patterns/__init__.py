"""Patterns: the forms of tasks, as matched and described. No loops.
Read first: `fused_stage`, then `product`.
May import: `search_space.space` and what is below it; no sketch.
"""
