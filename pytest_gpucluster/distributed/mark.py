"""The ``distributed`` mark: what it may say, and the tests a list of world sizes makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from pytest_gpucluster.ranks.group import BACKENDS, ISOLATIONS, Isolation

MARK = (
    "distributed(world_size='all', backend='auto', isolation='shared', timeout=None, env={}): "
    "run the test on ranks. world_size is a number, 'all' or a list of numbers (one test each); "
    "backend 'nccl', 'gloo' or 'auto'; isolation 'shared' (ranks and group are kept), 'group' (a "
    "new group) or 'process' (new processes); timeout in seconds; env sets environment variables "
    "in ranks of their own"
)


@dataclass(frozen=True)
class Request:
    """The checked arguments of a ``distributed`` mark."""

    world_size: int | Literal["all"] | tuple[int, ...] = "all"
    backend: Literal["nccl", "gloo", "auto"] = "auto"
    isolation: Isolation = "shared"
    timeout: float | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The largest number of ranks asked for; 0 for ``all``."""
        if isinstance(self.world_size, tuple):
            return max(self.world_size)
        return self.world_size if isinstance(self.world_size, int) else 0


def parse_mark(mark: pytest.Mark | None, nodeid: str) -> Request:
    """Validate a mark; raises `pytest.UsageError` that lists what is allowed."""
    if mark is None:
        return Request()

    def wrong(problem: str) -> pytest.UsageError:
        return pytest.UsageError(f"{nodeid}: @pytest.mark.distributed: {problem}. Use {MARK}")

    if mark.args:
        raise wrong(f"unexpected positional arguments {mark.args!r}")
    unknown = set(mark.kwargs) - {"world_size", "backend", "isolation", "timeout", "env"}
    if unknown:
        raise wrong(f"unknown argument {', '.join(sorted(unknown))}")
    size = mark.kwargs.get("world_size", "all")
    sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    if not sizes or not all(n == "all" or (type(n) is int and n >= 1) for n in sizes):
        raise wrong(f"world_size={size!r} is neither a positive number, a list of them, nor 'all'")
    backend = mark.kwargs.get("backend", "auto")
    if backend not in BACKENDS:
        raise wrong(f"backend={backend!r} is unknown")
    isolation = mark.kwargs.get("isolation", "shared")
    if isolation not in ISOLATIONS:
        raise wrong(f"isolation={isolation!r} is unknown")
    timeout = mark.kwargs.get("timeout")
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
        raise wrong(f"timeout={timeout!r} is not a positive number of seconds")
    env = mark.kwargs.get("env") or {}
    if not _is_environment(env):
        raise wrong(f"env={env!r} is not a dict of names and texts")
    return Request(
        sizes if isinstance(size, (list, tuple)) else size, backend, isolation, timeout, dict(env)
    )


def _is_environment(env: Any) -> bool:
    return (
        isinstance(env, dict)
        and all(isinstance(text, str) and "\0" not in text for text in (*env, *env.values()))
        and all(name and "=" not in name for name in env)
    )


def parametrise(metafunc: pytest.Metafunc) -> None:
    """A list of world sizes makes one test of each."""
    if "process_group" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("distributed")
    try:
        request = parse_mark(mark, metafunc.definition.nodeid)
    except pytest.UsageError:
        return  # told once collection is complete: raised here it would look like a broken test
    if isinstance(request.world_size, tuple):
        metafunc.parametrize(
            "process_group", request.world_size, indirect=True, ids=lambda n: f"ranks={n}"
        )
