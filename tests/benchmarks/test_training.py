"""A client's local step under pytest-benchmark; `training.py` has the paired ratios."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import torch

from bench.isolation.process import prepare_environment

sys.path.insert(0, str(Path(__file__).parent))
import training

PEERS = ("a plain loop, no defense", "opacus, fed-cdp", "opacus' optimizer, flat", "vmap(grad), fed-cdp")


# opacus hooks modules whose inputs need no gradient, and torch warns of it
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.slow
@pytest.mark.parametrize("name", [*training.DEFENSES, *PEERS])
def test_ten_clients_ten_steps(benchmark, name):
    torch.set_num_threads(1)
    once = training.contenders(10, 10)[name]
    benchmark.pedantic(once, rounds=5, warmup_rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["blocks to 32 MiB", "as workers"])
def test_memory_that_workers_keep(benchmark, monkeypatch, kept):
    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    if kept == "blocks to 32 MiB":
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(32 << 20))
    prepare_environment()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=training.on_request, args=(theirs,), daemon=True)
    process.start()

    def once():
        ours.send(True)
        assert ours.poll(60) and ours.recv()

    benchmark.pedantic(once, rounds=15, warmup_rounds=2)
    ours.send(False)
    process.join(10)
