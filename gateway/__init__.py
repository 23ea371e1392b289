"""The HTTP edge: many stateless processes; owns nothing durable."""
