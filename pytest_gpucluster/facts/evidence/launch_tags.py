"""What launchers put before the lines of their ranks."""

from __future__ import annotations

import re

# Open MPI --tag-output, torchrun --tee, srun --label, kubectl --timestamps, pdsh.
_TAGS = re.compile(
    r"(?:\[[0-9]{1,6},[0-9]{1,6}\](?:<std(?:out|err)>)?: ?"
    r"|\[(?:default|rank)?[0-9]{1,6}\]: ?"
    r"|[0-9]{1,6}: "
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(?:Z|[+-][0-9]{2}:?[0-9]{2})(?: \|)? ?"
    r"|[A-Za-z][A-Za-z0-9.-]{0,63}: (?=[#\s]))",
    re.ASCII,
)


def untagged(line: str) -> str:
    """The line as the rank wrote it."""
    return split_tag(line)[1]


def split_tag(line: str) -> tuple[str, str]:
    """What names the writer of the line (a time of day does not), and the rest."""
    writer = ""
    for _ in range(3):
        match = _TAGS.match(line)
        if match is None:
            break
        if not match[0][:4].isdecimal() or ":" not in match[0][:12]:
            writer += match[0].strip() if "T" not in match[0][:12] else ""
        line = line[match.end() :]
    return writer, line
