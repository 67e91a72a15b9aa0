"""Rescue: a placement for members that placing one after the other did not place."""
