"""A report: what the dashboard says of a job, as files: one of HTML that needs nothing else, and plots.
Read first: `document`, then `piece`, by which a page stands without the service.
May import: all of `api` but the routes and the client.
"""
