"""Postgres: the truth, and the only home of SQL."""
