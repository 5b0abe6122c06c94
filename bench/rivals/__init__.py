"""Other tuners, each a program in an environment of its own, and the protocol to call it.
Read first: `process.ServedProcess`, the caller, and `serving.serve`, the process.
May import: the standard library; a rival's program what its environment has.
"""
