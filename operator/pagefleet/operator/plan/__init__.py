"""Pure planning: what should run for a spec. No I/O, no clock, no environment."""
