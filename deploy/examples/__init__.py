"""Small clients to begin with: nothing but an HTTP library."""
