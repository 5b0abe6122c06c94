"""The service over HTTP: what guards it, what its routes share, and the routes for programs.
Read first: `middleware`, then `service` and `routes`.
May import: `client`, `tuner` and what is below it.
"""
