"""Validation: the causes for which an object is refused, each with its field path.

    checks.py      the combinators that validation is written in
    registry.py    the check of every kind and subresource; `validate` is the entry point
    other modules  the checks of one kind or of a part that several kinds share

Pure: a check never changes an object and never reads another one.
"""
