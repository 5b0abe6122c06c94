"""Named texts that a change of the code alone must leave as they are. Read first: `bench/replay.py`.
May import: what `api` may, and of `bench` its modules, `suite`, `gpus` and `training`.
"""
