"""What the routes mean: transactions, decisions, following a run."""
