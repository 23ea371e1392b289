"""OpsPilot, the sample agent: an operations assistant over a small fleet kept in Postgres."""
