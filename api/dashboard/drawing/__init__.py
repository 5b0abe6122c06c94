"""Charts as markup: pure functions from plain data, for the pages and for the report that is mailed.
Read first: `figure.Figure`, then `frame` and `scales`. How it looks is in `static/charts.css`: there is no style here.
May import: `tuner.text`, and nothing else of the project. Home of markupsafe.
"""
