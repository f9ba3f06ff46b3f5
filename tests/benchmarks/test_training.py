"""A client's local step under pytest-benchmark; `training.py` has the paired ratios."""

import sys
from pathlib import Path

import pytest
import torch

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
