"""What clients call: parse, ask a service, answer."""
