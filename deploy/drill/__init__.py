"""`steadyrun drill`: faults while clients watch and decide, and a checker of what they saw."""
