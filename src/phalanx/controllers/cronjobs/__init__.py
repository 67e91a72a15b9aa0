"""Cron: Jobs that are started by the clock."""
