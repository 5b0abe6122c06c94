"""Fusion: from a graph to tasks.
Read first: `fusion`, then `merge`.
May import: `graph.ops`, `graph.rounding`, `graph.task`, `graph.ir`.
"""
