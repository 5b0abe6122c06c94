"""A kernel: the loop IR, its verifier and interpreter, the emitters, the build, and the runtime of a compiled model.
Read first: `ir.Kernel`.
May import: nothing from the other folders. Home of llvmlite and CuPy.
"""
