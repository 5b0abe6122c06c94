"""The loop: ask for schedules, rank, measure, learn, stop; then compile the model. The command line too.
Read first: `loop`.
May import: every folder but `api`. Home of typer and rich.
"""
