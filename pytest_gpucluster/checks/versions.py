"""Version comparisons that never raise on odd text."""

from __future__ import annotations

from pytest_gpucluster.expectations.catalogue import version_key


def at_least(found: str, minimum: str) -> bool:
    """Whether ``found`` is ``minimum`` or newer; unreadable text is not."""
    try:
        return version_key(found) >= version_key(minimum)
    except ValueError:
        return False


def meets(found: str, specifier: str) -> bool:
    """Whether ``found`` satisfies a specifier such as ``>=2.18,<3``; unreadable text does not."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(specifier).contains(found, prereleases=True)
    except InvalidVersion:
        return False
