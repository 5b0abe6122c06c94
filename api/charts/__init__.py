"""Charts: the pictures of the pages, drawn by `drawing` of what a view says. Read first: `job`.
May import: of `api` the views, `drawing` and `addresses`.
"""
