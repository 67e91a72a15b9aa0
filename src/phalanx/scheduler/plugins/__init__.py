"""Judging: may a pod be on a node, and how well does it sit there? Tables of rows."""
