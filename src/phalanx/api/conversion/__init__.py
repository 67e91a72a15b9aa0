"""Versions: kinds that are served in several forms and stored in one, and older names of fields."""
