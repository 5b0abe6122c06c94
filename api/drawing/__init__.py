"""Charts as markup: pure functions from plain data, for the pages and for the report that is mailed.
Read first: `steps.steps`, then `frame` and `scales`. How it looks is api/static/charts.css; nothing here has a style.
May import: `tuner.text`, and nothing else of the project. Home of markupsafe.
"""
