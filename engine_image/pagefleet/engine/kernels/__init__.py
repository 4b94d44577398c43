"""Paged attention, one module per back end, all behind `interface.PagedAttention`."""
