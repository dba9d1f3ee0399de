"""What a node is: plain frozen values, JSON in and out, no judgement.

Unknown is ``None``, never 0 and never ``""``. A reader that failed leaves an
`Unreadable` behind instead of raising. Bandwidths are GB/s (1e9 bytes per second),
memory is bytes, power is watts, temperatures are degrees Celsius, clocks are MHz.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

SCHEMA_VERSION = 1

P2pStatus = Literal[
    "ok",
    "chipset_not_supported",
    "gpu_not_supported",
    "topology_not_supported",
    "disabled_by_regkey",
    "not_supported",
    "unknown",
]
Ancestor = Literal["internal", "single", "multiple", "host_bridge", "node", "system"]


@dataclass(frozen=True)
class Unreadable:
    """A subject that could not be read (``"nvml"``, ``"GPU3 ecc"``), and why."""

    subject: str
    reason: str


@dataclass(frozen=True)
class NvLink:
    """One NVLink of one GPU, as NVML reports it."""

    link: int
    active: bool | None = None
    version: str | None = None  # "4.0": the decoded enum, not NVML's raw number
    signalling_gbs: float | None = None  # raw rate per direction, above the payload rate
    remote_type: Literal["gpu", "switch", "npu", "unknown"] | None = None
    remote_bus_id: str | None = None
    errors: dict[str, int] = field(default_factory=dict)  # replay, recovery, crc


@dataclass(frozen=True)
class Ecc:
    """ECC mode and counters. ``None`` counters were not readable."""

    enabled: bool | None = None
    pending: bool | None = None
    uncorrected_volatile: int | None = None
    uncorrected_aggregate: int | None = None
    corrected_volatile: int | None = None
    corrected_aggregate: int | None = None
    sram_threshold_exceeded: bool | None = None


@dataclass(frozen=True)
class RemappedRows:
    """Row remapping (Ampere and newer)."""

    correctable: int
    uncorrectable: int
    pending: bool
    failed: bool


@dataclass(frozen=True)
class RetiredPages:
    """Page retirement (Kepler to Turing)."""

    single_bit: int
    double_bit: int
    pending: bool | None = None


@dataclass(frozen=True)
class Fabric:
    """NVSwitch fabric registration of one GPU (Hopper and newer)."""

    state: Literal["not_supported", "not_started", "in_progress", "completed"] | None = None
    status: int | None = None  # NVML return code of the registration, 0 = success
    clique_id: int | None = None
    cluster_uuid: str | None = None
    degraded_bandwidth: bool | None = None
    route_recovery: bool | None = None
    route_unhealthy: bool | None = None
    access_timeout: bool | None = None
    incorrect_configuration: str | None = None  # None: not reported; "none": all well


@dataclass(frozen=True)
class Pcie:
    """PCIe link of one device. ``device_*`` is what the device alone could do,
    ``max_*`` what device and slot together can; ``generation`` falls when idle."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    device_generation: int | None = None
    replays: int | None = None
    numa_node: int | None = None


@dataclass(frozen=True)
class Clocks:
    """Clocks in MHz, and why they are where they are."""

    sm: int | None = None
    memory: int | None = None
    sm_max: int | None = None
    memory_max: int | None = None
    event_reasons: tuple[str, ...] | None = None  # "hw_thermal", "sw_power_cap", ...


@dataclass(frozen=True)
class Power:
    """Power limits and draw in watts."""

    draw: float | None = None
    limit: float | None = None
    default_limit: float | None = None
    max_limit: float | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds a compute context on a GPU."""

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU. ``lost`` is the reason when the driver can no longer reach it."""

    index: int
    name: str | None = None
    uuid: str | None = None
    bus_id: str | None = None  # "0000:1b:00.0", lower case
    serial: str | None = None
    vbios: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    ecc: Ecc | None = None
    remapped_rows: RemappedRows | None = None
    retired_pages: RetiredPages | None = None
    mig_enabled: bool | None = None  # None: the GPU has no MIG, or it could not be read
    compute_mode: Literal["default", "exclusive_process", "prohibited"] | None = None
    persistence: bool | None = None
    power: Power = Power()
    clocks: Clocks = Clocks()
    temperature: float | None = None
    temperature_margin: float | None = None  # degrees left before slowdown
    recovery_action: str | None = None  # "none", "gpu_reset", "node_reboot", ...
    processes: tuple[GpuProcess, ...] | None = None
    pcie: Pcie = Pcie()
    nvlinks: tuple[NvLink, ...] | None = None  # None: not readable; (): the GPU has none
    fabric: Fabric | None = None
    lost: str | None = None

    @property
    def label(self) -> str:
        """The component name used in findings: ``GPU2``."""
        return f"GPU{self.index}"

    @property
    def active_links(self) -> int | None:
        """How many NVLinks are up; ``None`` if that is not known for every link."""
        if self.nvlinks is None or any(link.active is None for link in self.nvlinks):
            return None
        return sum(1 for link in self.nvlinks if link.active)


@dataclass(frozen=True)
class GpuPair:
    """Two GPUs of a node (``a < b``): peer access and nearest common PCIe ancestor."""

    a: int
    b: int
    read: P2pStatus = "unknown"
    write: P2pStatus = "unknown"
    nvlink: P2pStatus = "unknown"
    ancestor: Ancestor | None = None

    @property
    def label(self) -> str:
        """The component name used in findings: ``GPU2-GPU5``."""
        return f"GPU{self.a}-GPU{self.b}"


@dataclass(frozen=True)
class NetworkPort:
    """One port of a network adapter, from sysfs."""

    device: str  # "mlx5_4", "eth0"
    port: int = 1
    kind: Literal["infiniband", "roce", "efa", "ethernet"] = "ethernet"
    state: str | None = None  # "ACTIVE", "DOWN", "INIT", ...
    physical_state: str | None = None  # "LinkUp", "Polling", ...
    rate_gbps: float | None = None
    netdev: str | None = None
    firmware: str | None = None
    pcie: Pcie = Pcie()
    bus_id: str | None = None
    counters: dict[str, int] = field(default_factory=dict)  # symbol_error, link_downed, ...
    virtual: bool | None = None  # a bridge, veth or the like: no hardware behind it

    @property
    def label(self) -> str:
        """The component name used in findings: ``mlx5_4 port 1``."""
        return self.device if self.kind == "ethernet" else f"{self.device} port {self.port}"


@dataclass(frozen=True)
class KernelEvent:
    """One line of the kernel log that concerns GPUs, links or adapters."""

    kind: Literal["xid", "sxid", "off_bus", "aer", "mlx5", "oom"]
    text: str
    code: int | None = None  # Xid or SXid number
    bus_id: str | None = None
    timestamp: str | None = None
    line: int | None = None


@dataclass(frozen=True)
class Software:
    """Versions as installed. Reading them initialises nothing."""

    python: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None  # newest CUDA the driver speaks, "13.0"
    nvml: str | None = None
    nvml_binding: str | None = None  # "nvidia-ml-py 13.615.71"
    nvml_binding_problem: str | None = None  # what shadows NVIDIA's binding
    torch: str | None = None
    torch_cuda: str | None = None  # "13.0"; None with a torch version: a CPU build
    torch_nccl: str | None = None  # the NCCL that torch loads, "2.29.7"
    system_nccl: str | None = None
    fabric_manager: str | None = None
    kernel: str | None = None
    os: str | None = None


@dataclass(frozen=True)
class Host:
    """The machine around the GPUs."""

    name: str
    cpus: int | None = None
    cpu_model: str | None = None
    memory_bytes: int | None = None
    numa_nodes: int | None = None
    memlock_bytes: int | None = None  # -1: unlimited
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    container: str | None = None
    environment: dict[str, str] = field(default_factory=dict)  # NCCL_*, CUDA_*, GLOO_*, UCX_*
    nvidia_pci_devices: int | None = None  # display-class devices of vendor 10de in sysfs


@dataclass(frozen=True)
class NodeFacts:
    """Everything known about one node.

    ``gpus`` is ``None`` when nothing could count them (NVML did not answer) and ``()``
    when the answer was: none.
    """

    host: Host
    software: Software = Software()
    gpus: tuple[Gpu, ...] | None = None
    pairs: tuple[GpuPair, ...] | None = None
    network: tuple[NetworkPort, ...] | None = None
    kernel_events: tuple[KernelEvent, ...] | None = None  # None: the log was not readable
    unreadable: tuple[Unreadable, ...] = ()
    taken: str | None = None  # ISO 8601, UTC
    schema_version: int = SCHEMA_VERSION

    def why_unreadable(self, subject: str) -> str | None:
        """The reason recorded for ``subject``, or ``None`` if it was read."""
        return next((u.reason for u in self.unreadable if u.subject == subject), None)

    def with_unreadable(self, *more: Unreadable) -> NodeFacts:
        """A copy with further unreadable subjects."""
        return replace(self, unreadable=self.unreadable + more)


class FactsError(ValueError):
    """A saved facts file that is not one; the message says where and why."""


T = TypeVar("T")


def to_json(value: object) -> bytes:
    """Indented JSON of any of the values above."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2)


def from_json(text: bytes | str, kind: type[T], origin: str = "facts") -> T:
    """Parse and validate untrusted JSON into ``kind``; raises `FactsError`."""
    import msgspec

    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise FactsError(f"{origin}: not valid {kind.__name__} JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise FactsError(f"{origin}: not UTF-8: {error}") from error
    except RecursionError as error:
        raise FactsError(f"{origin}: nested too deeply") from error


def to_builtins(value: object) -> Any:
    """Plain dicts, lists and scalars of any of the values above."""
    import msgspec

    return msgspec.to_builtins(value)
