"""CUDA: kernels as CUDA C, run by an interpreter, built without a GPU, and driven on one.
Read first: `emit`, then `interp`.
May import: codegen. Home of CuPy.
"""
