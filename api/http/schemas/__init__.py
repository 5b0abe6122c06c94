"""Schemas: what goes over the wire, as pydantic models. Requests refuse fields that they don't know.

Times of schedules and models are milliseconds (`*_ms`), durations of jobs seconds (`*_s`), moments ISO 8601 in UTC.
Texts that users chose (labels, names in models) are passed on as they are: whoever shows them escapes them.
"""
