"""A report: what the dashboard says of a job, as files: one of HTML that needs nothing else, and plots.
Read first: `command`, then `fragment`, by which a page stands without the service.
May import: the pages of a job and of a task, and what they share.
"""
