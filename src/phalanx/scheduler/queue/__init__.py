"""Queueing: what is seen goes in, what is to be tried next comes out. It can all be replayed."""
