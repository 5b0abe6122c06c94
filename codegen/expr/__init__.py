"""Expressions: five kinds over loop variables and buffers, what they mean in numpy, and what is known of them.
Read first: `expr`, then `index`.
May import: `codegen.fields`.
"""
