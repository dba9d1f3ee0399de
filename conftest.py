"""pytest takes this line from the root folder only."""

pytest_plugins = ["pytester", "pytest_gpucluster.testing.plugin"]
