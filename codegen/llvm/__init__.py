"""Kernels as LLVM IR and as objects.
Read first: `emit`, then `build`.
May import: `codegen.verify`, `codegen.target` and what is below these; llvmlite.
"""
