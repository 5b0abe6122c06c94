"""Running a model: from schedules to an image, kept on disk, and the session that runs it.
Read first: `session.InferenceSession`, and `session_model` for what it runs.
May import: what `tuner` may.
"""
