"""What the commands do, a file a family: each answers with JSON data, which its `render` prints for people.
Read first: `tune`.
May import: what `tuner` may. `tuner.cli` imports them when they are called.
"""
