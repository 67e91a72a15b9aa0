"""The scheduler's shell: what is seen goes to the desk, what is decided is bound and told."""
