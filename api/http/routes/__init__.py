"""The routes for programs, a module for each kind of thing; each has a `router`, which `app` includes.
May import: the modules of `http` around it, and one another for what they share.
"""
