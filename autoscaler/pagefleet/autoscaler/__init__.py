"""Decide how many replicas a service needs."""
