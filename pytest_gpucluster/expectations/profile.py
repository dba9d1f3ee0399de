"""A user's profile: what the nodes of one kind should be, as TOML.

Every key is optional and overrides what the catalogue derives. The schema is
``data/profile.schema.json``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_gpucluster.expectations.golden import golden_text, write_atomically
from pytest_gpucluster.expectations.profile_errors import (
    ProfileError,
    nearest,
    problems_of,
    profile_schema,
    shown,
)
from pytest_gpucluster.expectations.tables import packaged, packaged_names, parse_toml
from pytest_gpucluster.facts.model import NodeFacts

BUILT_IN = "built-in"
MAX_BYTES = 1_000_000

__all__ = [
    "BUILT_IN",
    "Profile",
    "ProfileError",
    "builtin_profiles",
    "load_profile",
    "parse_profile",
    "read_profile",
    "save_profile",
]


@dataclass(frozen=True)
class Gpus:
    """``model``: NVML names, any of which is right. ``memory_gb``: nominal, of each GPU."""

    count: int | None = None
    model: tuple[str, ...] | None = None
    memory_gb: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


@dataclass(frozen=True)
class NvLinks:
    """``links``: per GPU, 0 for none. ``all_pairs``: every pair of GPUs is joined."""

    links: int | None = None
    version: str | None = None
    all_pairs: bool | None = None


@dataclass(frozen=True)
class FabricState:
    """Registration with the NVSwitch fabric."""

    completed: bool | None = None


@dataclass(frozen=True)
class PcieLink:
    """What GPU and slot should be able to do under load."""

    generation: int | None = None
    width: int | None = None


@dataclass(frozen=True)
class PeerAccess:
    """Whether every pair of GPUs must reach each other's memory."""

    required: bool | None = None


@dataclass(frozen=True)
class Network:
    """``ports`` of ``kind``, each of ``rate_gbps``."""

    ports: int | None = None
    kind: Literal["infiniband", "roce", "efa", "ethernet"] | None = None
    rate_gbps: float | None = None
    required: bool | None = None


@dataclass(frozen=True)
class Versions:
    """Specifiers such as ``">=535,<600"``."""

    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    torch: str | None = None


@dataclass(frozen=True)
class PowerLimit:
    """Watts per GPU."""

    limit_w: float | None = None


@dataclass(frozen=True)
class HostLimits:
    """``shm_gb``: the least size of /dev/shm, 1e9 bytes."""

    memlock_unlimited: bool | None = None
    shm_gb: float | None = None


@dataclass(frozen=True)
class BandwidthFloor:
    """Least bus bandwidth of an all-reduce over all GPUs of the node, GB/s."""

    all_reduce_gbs: float | None = None


@dataclass(frozen=True)
class Checks:
    """Ids or globs of checks. ``required`` ``None``: every built-in check of the level."""

    required: tuple[str, ...] | None = None
    optional: tuple[str, ...] = ()
    allow_warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """A validated profile. ``source`` is its path, or ``"built-in"``."""

    name: str
    source: str
    description: str = ""
    gpus: Gpus = Gpus()
    nvlink: NvLinks = NvLinks()
    fabric: FabricState = FabricState()
    pcie: PcieLink = PcieLink()
    p2p: PeerAccess = PeerAccess()
    network: Network = Network()
    software: Versions = Versions()
    power: PowerLimit = PowerLimit()
    host: HostLimits = HostLimits()
    bandwidth: BandwidthFloor = BandwidthFloor()
    checks: Checks = Checks()

    @property
    def label(self) -> str:
        """How reports name it as a source: ``profile hgx-h100``."""
        return f"profile {self.name}"


SECTIONS: dict[str, type[Any]] = {
    "gpus": Gpus,
    "nvlink": NvLinks,
    "fabric": FabricState,
    "pcie": PcieLink,
    "p2p": PeerAccess,
    "network": Network,
    "software": Versions,
    "power": PowerLimit,
    "host": HostLimits,
    "bandwidth": BandwidthFloor,
    "checks": Checks,
}


def builtin_profiles() -> tuple[str, ...]:
    """Names of the profiles that ship with the package, sorted."""
    return packaged_names("profiles", ".toml")


def load_profile(reference: str) -> Profile:
    """The built-in profile of that name, or the profile in that file.

    Raises `ProfileError` that names the file, the key, what was given and what is allowed.
    """
    if reference in builtin_profiles():
        text = packaged(f"profiles/{reference}.toml")
        return parse_profile(text, source=BUILT_IN, name=reference, origin=reference)
    path = Path(reference).expanduser()
    looks_like_path = "/" in reference or path.suffix == ".toml" or path.exists()
    if reference and looks_like_path:
        return read_profile(path)
    raise ProfileError(
        f"profile {shown(reference)}: there is no built-in profile of that name and no such file."
        f"{nearest(reference, builtin_profiles())} Built in: {', '.join(builtin_profiles())}."
    )


def read_profile(path: Path) -> Profile:
    """Read a profile file; raises `ProfileError`."""
    if path.is_dir():
        raise ProfileError(f"{path}: is a directory; a profile is a TOML file.")
    if not path.exists():
        raise ProfileError(f"{path}: no such file. Built in: {', '.join(builtin_profiles())}.")
    if not path.is_file():
        raise ProfileError(f"{path}: is not a regular file; a profile is a TOML file.")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(raw) > MAX_BYTES:
        raise ProfileError(f"{path}: is larger than {MAX_BYTES} bytes, so not a profile.")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProfileError(
            f"{path}: is not UTF-8 text (byte {error.start}). Save it as UTF-8."
        ) from error
    return parse_profile(text, source=str(path), name=_name_of(path), origin=str(path))


def save_profile(facts: NodeFacts, path: Path) -> Profile:
    """Write what this node is as the profile that others are held to.

    The file appears whole or not at all, and loads to the profile returned. Raises `ProfileError`
    if the node is no model for others or the file cannot be written.
    """
    try:
        text = golden_text(facts)
        profile = parse_profile(
            text, source=str(path), name=_name_of(path), origin="what was read from it"
        )
    except ProfileError as error:
        raise ProfileError(f"{path}: not written: {error}") from error
    write_atomically(path, text)
    return profile


def parse_profile(text: str, *, source: str, name: str, origin: str) -> Profile:
    """Validate TOML text. ``name`` is used where the text gives none, ``origin`` in messages."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise ProfileError(f"{origin}: is not valid TOML: {error}") from error
    if problems := problems_of(data):
        raise ProfileError("\n".join(f"{origin}: {problem}" for problem in problems))
    sections = {key: _section(key, data[key]) for key in SECTIONS if key in data}
    return Profile(
        name=data.get("name", name),
        source=source,
        description=data.get("description", ""),
        **sections,
    )


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)


def _section(name: str, row: dict[str, Any]) -> Any:
    schema = profile_schema()["properties"][name]["properties"]
    return SECTIONS[name](**{key: _typed(value, schema[key]) for key, value in row.items()})


def _typed(value: Any, schema: dict[str, Any]) -> Any:
    # TOML and JSON Schema let 8.0 be a whole number and 80 a float.
    kind = schema.get("type")
    if kind == "array":
        return tuple(value)
    if kind == "integer":
        return int(value)
    return float(value) if kind == "number" else value
