"""Views: what the pages say, as plain data: each a frozen model, and the function that makes it from the store.
Read first: `jobs`, which is the smallest one. `routes/pages` offers each as a page and as JSON.
May import: `tuner` and what is below it, and of `api` the schemas, `paging` and `problems`; no FastAPI, no HTML.
"""
