"""Evidence of a live node, gathered to be judged elsewhere."""

from pytest_gpucluster.facts.gather.folder import Gathered, GatherError, gather

__all__ = ["GatherError", "Gathered", "gather"]
