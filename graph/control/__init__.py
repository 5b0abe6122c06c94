"""Control flow whose bodies are graphs of their own, as steps of the model around it.
Read first: `lower.lower`, then `steps`.
May import: what `graph` may.
"""
