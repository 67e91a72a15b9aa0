"""Asking: why something waits, what would cure it, and what if. Whoever asks changes nothing."""
