"""Distributed tests: recognised, sized, run on ranks, reported as one item."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_gpucluster import requirements
from pytest_gpucluster.acceptance import Acceptance, of
from pytest_gpucluster.collection import is_builtin
from pytest_gpucluster.facts import visible
from pytest_gpucluster.ranks.group import BACKENDS, ISOLATIONS, GroupSpec, Isolation
from pytest_gpucluster.usage import is_distributed

if TYPE_CHECKING:
    from pytest_gpucluster.ranks.leader import Leader

DEFAULT_CPU_RANKS = 2
TIMEOUT = pytest.StashKey[float]()  # what pytest-timeout allows a test, in seconds
MARK = (
    "distributed(world_size='all', backend='auto', isolation='shared', timeout=None): run the "
    "test on ranks. world_size is a number, 'all' or a list of numbers (one test each); backend "
    "'nccl', 'gloo' or 'auto'; isolation 'shared' (ranks and group are kept), 'group' (a new "
    "group) or 'process' (new processes); timeout in seconds"
)


@dataclass(frozen=True)
class Request:
    """The checked arguments of a ``distributed`` mark."""

    world_size: int | Literal["all"] | tuple[int, ...] = "all"
    backend: Literal["nccl", "gloo", "auto"] = "auto"
    isolation: Isolation = "shared"
    timeout: float | None = None


def parse_mark(mark: pytest.Mark | None, nodeid: str) -> Request:
    """Validate a mark; raises `pytest.UsageError` that lists what is allowed."""
    if mark is None:
        return Request()

    def wrong(problem: str) -> pytest.UsageError:
        return pytest.UsageError(f"{nodeid}: @pytest.mark.distributed: {problem}. Use {MARK}")

    if mark.args:
        raise wrong(f"unexpected positional arguments {mark.args!r}")
    unknown = set(mark.kwargs) - {"world_size", "backend", "isolation", "timeout"}
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
    return Request(sizes if isinstance(size, (list, tuple)) else size, backend, isolation, timeout)


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


def visible_gpus(run: Acceptance) -> list[str]:
    """The GPUs that ranks started now will see."""
    return visible.visible_gpus(run.facts.gpus or (), os.environ.get("CUDA_VISIBLE_DEVICES"))


def specify(item: pytest.Item, run: Acceptance) -> GroupSpec | str:
    """The group an item needs, or the reason why this machine cannot give it."""
    request = parse_mark(item.get_closest_marker("distributed"), item.nodeid)
    if run.enabled and run.mode == "evidence":
        return (
            "nothing is run on the node whose facts are judged (use --gpucluster-level=inventory)"
        )
    on_cpu = run.mode == "rehearsal" or request.backend == "gloo"
    gpus = 0 if on_cpu else len(visible_gpus(run))
    if not gpus and run.mode == "live" and run.enabled and request.backend != "gloo":
        return "no NVIDIA GPU is visible here, and this is not a rehearsal (--gpucluster-rehearse)"
    there = len([gpu for gpu in run.facts.gpus or () if gpu.lost is None])
    if gpus and is_builtin(item.nodeid) and gpus != there:
        return (
            f"CUDA_VISIBLE_DEVICES shows {gpus} of {there} GPUs: unset it, so that all are tested"
        )
    if not gpus and request.backend == "nccl":
        return "the test asks for NCCL and no NVIDIA GPU is used here"
    available = gpus or run.settings["ranks"] or max(DEFAULT_CPU_RANKS, _largest(request))
    wanted = getattr(getattr(item, "callspec", None), "params", {}).get("process_group")
    size = wanted or request.world_size
    if size == "all" or isinstance(size, tuple):
        size = available
    if size > available:
        what = "GPUs are visible" if gpus else "CPU ranks were asked for (--gpucluster-ranks)"
        return f"world_size={size}, but {available} {what}"
    return GroupSpec(
        world_size=size,
        backend="nccl" if gpus else "gloo",
        isolation=request.isolation,
        deadline_s=(request.timeout or run.settings["timeout"]) + _soak_s(item, run),
    )


def _soak_s(item: pytest.Item, run: Acceptance) -> float:
    """The time a soak takes by order, which is no hang."""
    level = item.get_closest_marker("gpucluster_level")
    return float(run.settings["soak"]) if level and level.args[0] == "soak" else 0.0


def _largest(request: Request) -> int:
    if isinstance(request.world_size, tuple):
        return max(request.world_size)
    return request.world_size if isinstance(request.world_size, int) else 0


class Engine:
    """Runs a session's distributed tests; the leader is made at the first one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._leader: Leader | None = None
        config.pluginmanager.register(self, "gpucluster-engine")

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Take pytest-timeout's limit as the deadline of the ranks.

        Its own timer would interrupt the leader, and cannot interrupt a rank in a collective.
        """
        if not is_distributed(item) or settings.func_only:
            return None
        item.stash[TIMEOUT] = settings.timeout
        return True

    def run(
        self, item: pytest.Item, spec: GroupSpec, nextitem: pytest.Item | None
    ) -> list[pytest.TestReport]:
        """The merged reports of one distributed test."""
        from pytest_gpucluster.ranks import merge
        from pytest_gpucluster.ranks.agent import RanksDidNotStart

        keywords = dict.fromkeys(item.keywords, 1)
        identity = merge.TestIdentity(item.nodeid, item.location, keywords)
        following = self._following(item, nextitem)
        spec = replace(spec, deadline_s=min(spec.deadline_s, item.stash.get(TIMEOUT, math.inf)))
        try:
            with self._lease(spec):
                outcome = self._leader_for().run(item.nodeid, spec, following)
        except RanksDidNotStart as error:
            return [_bare_report(item, "failed", str(error))]
        restore = self._config.hook.pytest_report_from_serializable
        reports = merge.merge(
            identity, outcome, lambda data: restore(config=self._config, data=data)
        )
        if hasattr(self._config, "workerinput"):
            for report in reports:  # execnet carries plain strings only
                if isinstance(report.longrepr, merge.RankFailure):
                    report.longrepr = str(report.longrepr)
        _keep_evidence(of(self._config), item, outcome)
        return reports

    def stop(self) -> None:
        """End the ranks."""
        if self._leader is not None:
            self._leader.stop()
            self._leader = None

    def _leader_for(self) -> Leader:
        if self._leader is None:
            from pytest_gpucluster.ranks.leader import Leader, LeaderConfig

            run = of(self._config)
            worker: dict[str, Any] = getattr(self._config, "workerinput", {})
            logs = run.settings["report"] / "ranks" / worker.get("workerid", "")
            self._leader = Leader(
                LeaderConfig(
                    arguments=tuple(map(str, self._config.invocation_params.args)),
                    folder=self._config.invocation_params.dir,
                    logs=self._config.invocation_params.dir / logs,
                    payload=run.hand_over(),
                    environment=dict(os.environ),
                )
            )
        return self._leader

    @contextlib.contextmanager
    def _lease(self, spec: GroupSpec) -> Iterator[None]:
        from pytest_gpucluster.ranks import lease

        run = of(self._config)
        resources = visible_gpus(run) if spec.backend == "nccl" else [lease.CPU]

        def tell(text: str) -> None:
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            if reporter is not None:
                reporter.write_line(f"gpucluster: {text}")

        with lease.lease(resources, tell):
            yield

    def _following(self, item: pytest.Item, nextitem: pytest.Item | None) -> str | None:
        """The next test if the same ranks will run it, so that its fixtures stay alive."""
        if nextitem is None or not is_distributed(nextitem):
            return None
        run = of(self._config)
        here, there = specify(item, run), specify(nextitem, run)
        return nextitem.nodeid if here == there else None


def run(item: pytest.Item, nextitem: pytest.Item | None, engine: Engine) -> list[pytest.TestReport]:
    """Gate a distributed test on its marks and this machine, then run it on its ranks."""
    gate = requirements.evaluate(item)
    if gate is None:
        spec = specify(item, of(item.config))
        if isinstance(spec, GroupSpec):
            return engine.run(item, spec, nextitem)
        gate = requirements.missing_ranks(item, spec)
    requirements.record(item, gate)
    if gate.kind == "fail":
        return [_bare_report(item, "failed", f"{gate.mark}: {gate.reason}")]
    prefix = "unverified: " if gate.kind == "unverified" else ""
    path, line, _ = item.location
    return [
        _bare_report(item, "skipped", (path, (line or 0) + 1, f"Skipped: {prefix}{gate.reason}"))
    ]


def _bare_report(
    item: pytest.Item, outcome: Literal["failed", "skipped"], longrepr: Any
) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when="setup",
        user_properties=item.user_properties,
    )


def _keep_evidence(run: Acceptance, item: pytest.Item, outcome: Any) -> None:
    """Stacks and flight recorders of ranks that were cut off, beside the ranks' logs."""
    cut_off = [result for result in outcome.ranks if result.state == "hung"]
    if not cut_off:
        return
    folder = item.config.invocation_params.dir / run.settings["report"] / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in item.nodeid)[-100:]
    for result in cut_off:
        text = f"{result.stack or '(no stack)'}\n\nflight recorder:\n{result.flight_recorder}\n"
        (folder / f"{name}-rank{result.rank}.hang.txt").write_text(text, encoding="utf-8")
