"""Executes graphs: claims runs, streams their events; speaks no HTTP."""
