"""The console in a real Chromium, before a whole system."""
