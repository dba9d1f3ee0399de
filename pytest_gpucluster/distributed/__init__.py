"""Distributed tests: recognised, sized, run on ranks, reported as one item."""
