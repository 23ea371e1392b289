"""Agents that come with Steadyrun."""
