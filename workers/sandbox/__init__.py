"""Child processes that may crash, hang or exceed memory without harm, confined where they read untrusted data.
Read first: `process`.
May import: `workers.pool`.
"""
