"""Ways to run Steadyrun: the command line, one machine, containers."""
