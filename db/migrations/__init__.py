"""The history of the schema, for Alembic: `versions` holds one file a revision, numbered 0001, 0002, ...

`python -m tunewright.db.migrations "Add a column"` writes the next one from what `tables` and the newest revision
differ in. Read it, mend it, set `schema.HEAD`, then run `tests/db/freeze.py` to keep a database of the new schema.
A revision that was released never changes, and only adds: an older process may still be writing.
"""
