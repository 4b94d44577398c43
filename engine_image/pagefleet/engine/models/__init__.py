"""Native model families."""
