"""The loop IR: a kernel is loops of statements over buffers. `interp` runs it in numpy.
Read first: `ir`.
May import: `codegen.expr`, `codegen.gpu`.
"""
