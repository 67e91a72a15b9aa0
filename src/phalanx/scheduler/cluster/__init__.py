"""The cluster as it is seen here: nodes and what is on them, groups, and what pods ask for."""
