"""The log for compilers that speak to Redis: what Inductor and Triton keep there, without anything on their side.

Start with `front.RedisFront`. Not a Redis: it has the few commands that these clients send, and the keys that `caches`
lists. Whatever else is asked for is not there, and what else is stored is forgotten, so that no build fails of it.
"""
