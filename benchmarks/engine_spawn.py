"""torch.multiprocessing.spawn per trivial all-reduce test: run by engine.py.

``python engine_spawn.py RANKS TESTS``. Apart from engine_torch.py, because a spawned rank imports
the file it was spawned from, and torch's harnesses take seconds to import.
"""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from engine_sampling import Clocks, note_memory


def _test(rank: int, ranks: int, rendezvous: str, notes: bool) -> None:
    store = dist.FileStore(rendezvous, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == ranks
    if notes:
        note_memory()
    dist.destroy_process_group()


def main() -> None:
    ranks, tests = int(sys.argv[1]), int(sys.argv[2])
    clocks = Clocks()
    for number in range(tests + 1):
        clocks.read()
        with tempfile.TemporaryDirectory() as folder:
            arguments = (ranks, f"{folder}/rendezvous", number == tests)
            mp.spawn(_test, args=arguments, nprocs=ranks)
    clocks.write()


if __name__ == "__main__":
    main()
