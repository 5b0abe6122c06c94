"""Tunewright inside other programs: a folder for each of them.
Read first: the docstring of the folder whose program you know.
May import: every folder. Nothing imports it.
"""
