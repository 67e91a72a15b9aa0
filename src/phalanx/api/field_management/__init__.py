"""Owning: which manager has said which field, and what it may take back (server-side apply)."""
