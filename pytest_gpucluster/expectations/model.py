"""An expectation is a value that knows where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Expected(Generic[T]):
    """What a node should show.

    ``source`` is printed beside the value (``"catalogue: H100 SXM"``, ``"profile hgx-h100"``).
    ``certain`` is false where no opened source settles the value: a difference warns, it never
    rejects.
    """

    value: T
    source: str
    certain: bool = True
