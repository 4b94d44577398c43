"""Scaling policies under one interface: ours, and those of the field as their code and documents describe them.

Each is given the same snapshots. They keep the defaults of their projects unless a target is swept.
"""
