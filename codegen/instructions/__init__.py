"""Instructions of GPUs that no expression stands for: each with text, meaning in numpy and manual section.
Read first: `instruction`, then `table`.
May import: `codegen.ir` and what is below it, `codegen.gpu`.
"""
