"""The service: `http` for programs, `dashboard` for people, `client` for the other side.
Read first: `app.create_app`, which puts it together. `serve` is the process, `program` has the commands.
May import: everything. Home of FastAPI and httpx.
"""
