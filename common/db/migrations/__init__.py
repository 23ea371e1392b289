"""Alembic revisions, run from code by common.db.migrate.

They run while older processes serve: expand first, contract in a later release (style: Warehouse).
"""
