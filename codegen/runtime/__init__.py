"""Running compiled kernels: native code in memory, the thread pool, programs of kernels, the plan of their memory.
Read first: `native.Program`.
May import: codegen. Linux on x86-64 and AArch64.
"""
