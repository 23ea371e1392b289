"""The graph that `steadyrun drill` runs: every kind of event, at a pace that faults can hit."""
