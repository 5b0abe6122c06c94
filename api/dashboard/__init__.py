"""The dashboard: pages for people, and the same as JSON below `/v1/pages`.

A page is a module and a template: `fleet.py` is what the page says, as plain data, with its route and its charts, and
`fleet.html` how it says it. A page of more parts than that has a folder: `job`, `task`, `compare`. `report` makes
a file of pages.
What pages share lies beside them: `page`, `page_query`, `views`, `html`, `base.html`, `parts.html`; `drawing` has the
charts.
Read first: `page`, which says how a page is added; then `keys`, which is the smallest one.
May import: `http`, `client`, `tuner` and what is below it.
"""
