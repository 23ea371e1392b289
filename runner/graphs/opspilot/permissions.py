"""What a person must be permitted to, by name."""

RESTART = "ops.restart"
