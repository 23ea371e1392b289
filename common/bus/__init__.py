"""Redis: the log in flight, the fan-out, the signals; the only home of Redis."""
