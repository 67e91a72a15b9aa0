"""The whole control plane in virtual time: scenarios in, timelines out.

Read `run.py` first. The components are the ones that run in earnest; only the loop, the clock and
the lots are the simulator's. Looks at a cluster as any client does; never changes how one works.
"""
