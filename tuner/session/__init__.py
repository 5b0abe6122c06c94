"""Running a model: from schedules to an image, kept on disk, and the session that runs it.
Read first: `session.InferenceSession`.
May import: what `tuner` may.
"""
