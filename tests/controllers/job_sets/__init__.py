"""Tests of the JobSet controller."""
