"""What is known: every trial as a row, the store that writes and finds them, and the migrations.
Read first: `store.Store`, the contract; `sql_store.open_store` opens one.
May import: `search_space`, `graph`, `codegen`. Home of sqlalchemy and alembic.
"""
