"""The service over HTTP: its process, what guards it, its routes, and the client of all that.
Read first: `app.create_app`, then `routes`. `serve` is the process, `client` the other side, `program` the commands.
May import: everything. Home of FastAPI and httpx.
"""
