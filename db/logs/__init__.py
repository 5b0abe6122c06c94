"""The log of other compilers: what they found best, by namespace, key and environment. Start with `logs.Logs`.

A value is opaque: bytes that a compiler wrote and understands. What is known of it beside is the environment that it
holds in, what it cost there, and how that is known; which of several values is served follows from these (`choice`).
"""
