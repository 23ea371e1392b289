"""The agreement of gateway and runner: words, states, storage, log."""
