"""faulthandler's texts of ranks, made up."""

from __future__ import annotations

import os
from pathlib import Path

STDLIB = Path(os.__file__).parent

HARNESS = """\
  File "/venv/lib/python3.11/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call
  File "/venv/lib/python3.11/site-packages/pluggy/_callers.py", line 121 in _multicall
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 190 in _run
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 98 in main
"""
OTHER_THREADS = f"""\
Thread 0x00007f0000000001 (most recent call first):
  File "{STDLIB}/multiprocessing/connection.py", line 395 in _recv
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/channel.py", line 25 in receive
  File "/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/rank.py", line 124 in _obey
  File "{STDLIB}/threading.py", line 982 in run

Thread 0x00007f0000000002 (most recent call first):
  File "/home/u/loader.py", line 9 in prefetch
  File "{STDLIB}/threading.py", line 982 in run

"""
TORCH = "/venv/lib/python3.11/site-packages/torch"


def stack(*frames: str) -> str:
    own = "".join(f"  File {frame}\n" for frame in frames)
    return (
        f"{OTHER_THREADS}Current thread 0x00007f0000000003 (most recent call first):\n"
        f"{own}{HARNESS}"
    )


IN_ALL_REDUCE = stack(
    f'"{TORCH}/distributed/distributed_c10d.py", line 3007 in all_reduce',
    f'"{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
    '"/home/u/train.py", line 30 in step',
    '"/home/u/test_x.py", line 12 in test_it',
)
IN_OWN_CODE = stack(
    '"/home/u/data.py", line 40 in load_batch', '"/home/u/test_x.py", line 10 in test_it'
)
ASLEEP_IN_STDLIB = stack(
    f'"{STDLIB}/selectors.py", line 415 in select',
    f'"{STDLIB}/subprocess.py", line 2115 in _communicate',
    '"/home/u/data.py", line 7 in fetch',
)
IN_BACKWARD = stack(
    f'"{TORCH}/autograd/graph.py", line 829 in _engine_run_backward',
    f'"{TORCH}/_tensor.py", line 630 in backward',
    '"/home/u/test_x.py", line 21 in test_it',
)
IN_PUBLIC_BARRIER = stack(
    f'"{TORCH}/distributed/distributed_c10d.py", line 4731 in _wait_all',
    f'"{TORCH}/distributed/distributed_c10d.py", line 4700 in barrier',
    f'"{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
    '"/venv/lib/python3.11/site-packages/pytest_gpucluster/ranks/group.py", line 77 in barrier',
    '"/home/u/test_x.py", line 5 in test_it',
)
