"""Fusion: from a graph to tasks.
Read first: `fusion`, then `merge`. `joined_products` is for GPUs.
May import: `graph.ops`, `graph.rounding`, `graph.task`, `graph.ir`, `graph.draft`, `graph.evaluation`.
"""
