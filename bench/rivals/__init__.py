"""What searches are compared with, each a program that runs in an environment of its own, and how to talk to it.
Read first: `process.Served`, the one side, and `serving.serve`, the other.
May import: the standard library; a rival's program what its environment has.
"""
