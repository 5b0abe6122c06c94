"""The routes of the service, a module for each kind of thing; each has a `router`, which `app` includes.
May import: the modules of `api` around it, and one another for what they share.
"""
