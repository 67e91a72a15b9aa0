"""Evicting: who must go so that a refused entity fits after all, at the least cost."""
