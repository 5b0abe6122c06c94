"""The routes for programs, a module for each kind of thing; each has a `router`, which `app` includes, but for
`lookup_cache` and `lookup_service`. `CONTRIBUTING.md` says how one is added.
May import: the modules of `http` around it, and one another for what they share.
"""
