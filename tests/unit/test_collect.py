"""Readers that hang, crash and lie, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest

from pytest_gpucluster.facts import children, collect
from pytest_gpucluster.facts.children import Outcome, run_together
from pytest_gpucluster.facts.model import Gpu, Pcie, Software, from_json, to_json
from pytest_gpucluster.facts.nvml import NvmlFacts
from pytest_gpucluster.facts.pcie import PciDevice, PcieFacts
from pytest_gpucluster.facts.software import SoftwareFacts

MARK = "GPUCLUSTER_TEST_MARK"
FAST = ("pcie", "network", "host")  # readers that need nothing but sysfs and procfs

Processes = Callable[[], list[psutil.Process]]
Sabotage = Callable[[str, str], None]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """All processes started from this test, however far they have run away."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    def alive() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                    found.append(process)
        return found

    yield alive
    left = [] if all_gone(alive) else alive()
    for process in left:
        process.kill()
    assert left == []


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Sabotage:
    """Replace what one reader does."""

    def replace(reader: str, program: str) -> None:
        body = textwrap.indent(textwrap.dedent(program), "    ")
        boot = f"import os, sys\nif sys.argv[1] == {reader!r}:\n{body}\n    sys.exit()\n"
        monkeypatch.setattr(collect, "_BOOT", boot + collect._BOOT)

    return replace


def python(program: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program)]


def run(program: str, deadline_s: float = 20.0, **options: int) -> Outcome:
    return run_together({"it": python(program)}, deadline_s, **options)["it"]


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def all_gone(processes: Processes) -> bool:
    # SIGKILL is not to be escaped, but a process takes a moment to be gone.
    return eventually(lambda: processes() == [], 2.0)


def test_this_node(processes: Processes) -> None:
    facts = collect.collect()
    assert facts.host.name
    assert facts.host.cpus == os.cpu_count()
    assert facts.software.python == ".".join(map(str, sys.version_info[:3]))
    assert facts.network is not None
    assert facts.taken is not None
    age = datetime.now(timezone.utc) - datetime.fromisoformat(facts.taken)
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert from_json(to_json(facts), type(facts)) == facts
    assert all_gone(processes)


def test_hung_driver_is_cut_off_and_its_last_call_named(
    processes: Processes, sabotage: Sabotage
) -> None:
    program = """
    import time
    for gpu in range(4):
        sys.stderr.write(f"nvml: GPU{gpu} nvmlDeviceGetNvLinkState\\n")
    sys.stderr.flush()
    time.sleep(60)
    """
    sabotage("nvml", program)
    started = time.monotonic()
    facts = collect.collect(1.5, ("nvml", *FAST))
    assert 1.5 <= time.monotonic() - started < 3.5
    reason = facts.why_unreadable("nvml")
    assert reason is not None
    assert reason.startswith(
        "NVML did not answer in 1.5 s; last call: nvmlDeviceGetNvLinkState on GPU3. "
    )
    assert "nvidia-smi" in reason
    assert facts.gpus is None
    assert facts.host.cpus == os.cpu_count()  # the others are not held up
    assert all_gone(processes)


def test_stubborn_reader_and_its_offspring_die(processes: Processes, sabotage: Sabotage) -> None:
    program = """
    import signal, subprocess, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
    """
    sabotage("host", program)
    facts = collect.collect(1.0, ("host",))
    assert "did not answer in 1 s" in (facts.why_unreadable("host") or "")
    assert all_gone(processes)


def test_offspring_that_holds_the_pipe_does_not_hold_us(processes: Processes) -> None:
    started = time.monotonic()
    outcome = run("import subprocess; subprocess.Popen(['sleep', '60']); print('done')")
    assert time.monotonic() - started < 10
    assert (outcome.end, outcome.code, outcome.output) == ("exited", 0, b"done\n")
    assert all_gone(processes)


def test_offspring_dies_whenever_the_child_ends(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended = children._has_ended

    def stale(child: children._Child) -> bool:
        answer = has_ended(child)
        time.sleep(0.3)  # the child ends between the question and what is made of the answer
        return answer

    monkeypatch.setattr(children, "_has_ended", stale)
    outcome = run("import subprocess; subprocess.Popen(['sleep', '60']); print('done')")
    assert (outcome.end, outcome.output) == ("exited", b"done\n")
    assert all_gone(processes)


def test_each_reader_has_its_own_deadline_and_all_run_at_once(processes: Processes) -> None:
    sleepers = {str(number): python("import time; time.sleep(60)") for number in range(6)}
    started = time.monotonic()
    outcomes = run_together(sleepers, 1.0)
    assert time.monotonic() - started < 3.0
    assert {outcome.end for outcome in outcomes.values()} == {"hung"}
    assert list(outcomes) == list(sleepers)
    assert all_gone(processes)


def test_process_that_cannot_die_is_not_waited_for(
    processes: Processes, sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage("nvml", "import time; time.sleep(60)")
    with monkeypatch.context() as patch:
        # Uninterruptible sleep, as seen from outside: SIGKILL has no effect.
        patch.setattr(children, "_kill", lambda child: None)
        started = time.monotonic()
        facts = collect.collect(0.5, ("nvml",))
        assert time.monotonic() - started < 3.0
    assert "cannot be killed" in (facts.why_unreadable("nvml") or "")
    (survivor,) = processes()
    survivor.kill()
    assert eventually(lambda: processes() == [] and not survivor.is_running())  # reaped, too


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 40)", "was killed by signal 40"),
        ("raise RuntimeError('no such GPU')", "RuntimeError: no such GPU"),
        ("os._exit(3)", "failed (exit status 3)"),
        ("pass", "not valid HostFacts JSON"),
        ("os.write(1, bytes(range(256)) * 1000)", "not valid HostFacts JSON"),
        ('print(\'{"host": {"name": 7}}\')', "Expected `str`, got `int`"),
        ("print('{\"x\": ' + '[' * 10**6)", "nested too deeply"),
        ('print(\'{"host": {"name": "n"}}\', \'{}\')', "not valid HostFacts JSON"),
        ("os.write(2, b'\\x1b[2J' + b'A' * 10**6 + b'\\n'); os._exit(1)", "exit status 1"),
    ],
)
def test_reader_that_crashes_or_lies(
    processes: Processes, sabotage: Sabotage, program: str, said: str
) -> None:
    sabotage("host", program)
    facts = collect.collect(20.0, ("host",))
    reason = facts.why_unreadable("host")
    assert reason is not None
    assert said in reason
    assert "pytest_gpucluster.facts.reader host" in reason
    assert len(reason) < 1000
    assert reason.isprintable()
    assert facts.host.name  # a node has a name even so
    assert facts.host.cpus is None
    assert all_gone(processes)


def test_endless_output_is_stopped(processes: Processes) -> None:
    outcome = run("import os\nwhile True: os.write(1, b'x' * 65536)", max_output=2**20)
    assert (outcome.end, outcome.output) == ("flooded", b"")
    assert all_gone(processes)


def test_too_much_output_from_a_reader_that_ended(processes: Processes) -> None:
    outcome = run("import os; os.write(1, b'x' * 60000)", max_output=50_000)
    assert outcome.end == "flooded"


def test_flood_that_cannot_be_stopped_is_not_kept(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooding: list[children._Child] = []
    with monkeypatch.context() as patch:
        patch.setattr(children, "_kill", flooding.append)
        outcome = run("import os\nwhile True: os.write(1, b'x' * 2**20)", max_output=2**20)
    assert (outcome.end, outcome.undying) == ("flooded", True)
    assert len(flooding[0].output) < 2 * 2**20
    assert all_gone(processes)  # its pipe is closed, which ends it


def test_reader_cannot_take_the_sessions_input(processes: Processes) -> None:
    program = """
    import sys
    from pytest_gpucluster.facts.children import run_together
    reader = [sys.executable, "-c", "import sys; print(len(sys.stdin.read()))"]
    print(run_together({"it": reader}, 10.0)["it"].output)
    """
    with subprocess.Popen(
        python(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as session:  # its input stays open all the while
        assert session.stdout is not None
        assert session.stdout.read() == b"b'0\\n'\n"


def test_interrupted_session_leaves_no_reader(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(child: object, max_output: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(children, "_advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("import time; time.sleep(60)")
    assert all_gone(processes)


def test_flooding_reader_is_said_to_be_one(processes: Processes, sabotage: Sabotage) -> None:
    sabotage("host", "while True: os.write(1, b' ' * 2**20)")
    reason = collect.collect(20.0, ("host",)).why_unreadable("host")
    assert reason is not None
    assert "more than 64 MB" in reason


def test_chatter_on_standard_error_costs_no_memory(processes: Processes) -> None:
    program = """
    import os
    for _ in range(400):
        os.write(2, b"x" * 65536)
    os.write(2, b"\\nnvml: GPU1 nvmlDeviceGetName\\n\\n")
    os.write(1, b"{}")
    """
    before = psutil.Process().memory_info().rss
    outcome = run(program)
    assert psutil.Process().memory_info().rss - before < 10 * 2**20
    assert (outcome.end, outcome.output) == ("exited", b"{}")
    assert outcome.last_line == "nvml: GPU1 nvmlDeviceGetName"


def test_last_line_without_an_end_is_bounded() -> None:
    assert len(run("import os; os.write(2, b'y' * 10**6)").last_line) <= 8192


def test_reader_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    facts = collect.collect(5.0, ("pcie", "host"))
    assert [problem.subject for problem in facts.unreadable] == ["pcie", "host"]
    assert "could not be started" in facts.unreadable[0].reason


def test_unknown_reader_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gpu: unknown reader\. Choose from nvml, pcie"):
        collect.collect(1.0, ("gpu",))


def test_readers_not_asked_for_leave_no_problem() -> None:
    facts = collect.collect(20.0, ("host",))
    assert facts.unreadable == ()
    assert (facts.gpus, facts.network, facts.kernel_events) == (None, None, None)


def test_working_directory_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec", "pynvml", "ctypes", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('wrong module')\n")
    monkeypatch.chdir(tmp_path)
    assert collect.collect(20.0, FAST).unreadable == ()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_reader_does_not_outlive_its_session(processes: Processes, number: signal.Signals) -> None:
    program = """
    from pytest_gpucluster.facts import collect
    collect._BOOT = collect._BOOT.replace("sys.exit(main(", (
        "from pytest_gpucluster.facts import reader; import time; "
        "reader.read = lambda subject: time.sleep(60); sys.exit(main("))
    collect.collect(60.0, ("host", "pcie"))
    """
    session = subprocess.Popen(python(program), stderr=subprocess.DEVNULL)
    try:
        assert eventually(lambda: len(processes()) == 3)
        time.sleep(0.3)
        session.send_signal(number)
        session.wait(10)
        assert all_gone(processes)
    finally:
        session.kill()
        session.wait()


def test_what_libraries_print_stays_out_of_the_document() -> None:
    program = """
    import os, sys
    from pytest_gpucluster.facts import reader
    honest = reader.read
    def noisy(subject):
        os.write(1, b"NCCL version 2.29.7\\n")
        print("hello")
        return honest(subject)
    reader.read = noisy
    sys.exit(reader.main(["software"]))
    """
    answer = subprocess.run(python(program), capture_output=True, check=True)
    assert from_json(answer.stdout, SoftwareFacts).software.python
    assert b"NCCL version" in answer.stderr


def test_reader_by_hand_refuses_what_it_does_not_know() -> None:
    command = [sys.executable, "-m", "pytest_gpucluster.facts.reader"]
    for arguments in ([], ["gpu"], ["../host"]):
        answer = subprocess.run([*command, *arguments], capture_output=True)
        assert answer.returncode == 2
        assert answer.stdout == b""
        assert b"Choose from nvml, pcie" in answer.stderr


def test_readers_import_neither_torch_nor_pytest() -> None:
    program = """
    import sys
    from pytest_gpucluster.facts import reader
    for subject in reader.SUBJECTS:
        reader.read(subject)
    print(sorted({"torch", "pytest", "numpy"} & set(sys.modules)))
    """
    answer = subprocess.run(python(program), stdout=subprocess.PIPE, check=True)
    assert answer.stdout.splitlines()[-1] == b"[]"


def exited(value: object) -> Outcome:
    return Outcome("exited", to_json(value), code=0)


def test_gpus_get_their_numa_node_from_sysfs_where_nvml_has_none() -> None:
    gpus = (
        Gpu(0, bus_id="0000:1b:00.0"),
        Gpu(1, bus_id="00000000:3B:00.0", pcie=Pcie(generation=5)),
        Gpu(2, bus_id="0000:5c:00.0", pcie=Pcie(numa_node=0)),
        Gpu(3, lost="GPU is lost"),
        Gpu(4, bus_id="0000:99:00.0"),
    )
    devices = tuple(
        PciDevice(address, Pcie(numa_node=1, generation=1))
        for address in ("0000:1b:00.0", "0000:3b:00.0", "0000:5c:00.0")
    )
    facts = collect.merge(
        {"nvml": exited(NvmlFacts(gpus=gpus)), "pcie": exited(PcieFacts(devices))}, 20.0
    )
    assert facts.gpus is not None
    assert [gpu.pcie.numa_node for gpu in facts.gpus] == [1, 1, 0, None, None]
    assert [gpu.pcie.generation for gpu in facts.gpus] == [None, 5, None, None, None]
    assert facts.host.nvidia_pci_devices == 3


def test_driver_version_comes_from_nvml_or_else_from_the_kernel_module() -> None:
    module = SoftwareFacts(Software(python="3.12.1", driver="570.1"))
    answered = collect.merge(
        {"nvml": exited(NvmlFacts(driver="580.2", nvml="13.1")), "software": exited(module)}, 20.0
    )
    assert (answered.software.driver, answered.software.nvml) == ("580.2", "13.1")
    assert answered.software.python == "3.12.1"
    mismatched = collect.merge(
        {"nvml": exited(NvmlFacts(nvml="13.1")), "software": exited(module)}, 20.0
    )
    assert mismatched.software.driver == "570.1"
    silent = collect.merge({"nvml": Outcome("hung"), "software": exited(module)}, 20.0)
    assert silent.software.driver == "570.1"
    assert silent.gpus is None
