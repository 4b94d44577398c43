"""Measure the engine against itself, transformers and the machine: `pagefleet bench`."""
