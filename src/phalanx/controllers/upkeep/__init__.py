"""Upkeep: what goes when nobody needs it any more, and what every namespace and role is to have."""
