"""Graphs that acceptance and fault tests run: a plain LangGraph project."""
