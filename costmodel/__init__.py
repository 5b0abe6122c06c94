"""What would be fast: features of a schedule, the model that ranks schedules, and its metrics.
Read first: `model.CostModel`.
May import: `search_space`, `graph`, `codegen`. Home of xgboost.
"""
