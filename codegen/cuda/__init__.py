"""CUDA: what NVIDIA GPUs offer, their instructions, and the compiler that needs no GPU.
Read first: `gpu.Gpu`, then `instructions`.
May import: codegen. Home of CuPy.
"""
