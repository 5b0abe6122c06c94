"""Cost models: features of schedules, models that rank them, and metrics.
Read first: `model.CostModel`.
May import: `search_space`, `graph`, `codegen`. Home of xgboost.
"""
