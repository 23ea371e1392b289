"""See the markers in pyproject.toml."""
