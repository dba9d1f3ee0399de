"""Facts that an earlier run saved: ``facts/<node>.json`` of its report."""

from __future__ import annotations

from pathlib import Path

from pytest_gpucluster.facts.model import SCHEMA_VERSION, FactsError, NodeFacts, from_json


def load_facts(path: Path) -> NodeFacts:
    """Read ``facts/<node>.json``; raises `FactsError` naming file and place."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FactsError(f"{path}: cannot be read: {error.strerror}") from error
    facts = from_json(text, NodeFacts, str(path))
    if facts.schema_version != SCHEMA_VERSION:
        raise FactsError(
            f"{path}: facts schema version {facts.schema_version}, this release reads "
            f"{SCHEMA_VERSION}. Judge it with the release that wrote it."
        )
    return facts
