"""The database: every trial as a row, the store that writes and finds them, and the migrations.
Read first: `store.Store`; `store.open_store` opens one. A singular module (`job`) holds data and imports no SQL, the
plural one (`jobs`) the class that stores it.
May import: `search_space`, `graph`, `codegen`. Home of sqlalchemy and alembic.
"""
