"""Benchmarks: speed and size, measured from outside; `make bench` runs them all."""
