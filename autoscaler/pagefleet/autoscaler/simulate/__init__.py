"""A fleet of engines in simulated time, to compare scaling policies on the same requests.

Requests arrive (`workload`), a router places them (`router`), replicas make steps (`replica`), pods come and go
(`fleet`), and a policy decides from snapshots like those that a controller would read. Nothing here reads a clock or
the network.
"""
