"""NVFLARE filters, called in this process (`tox -e nvflare`)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests import cells, foreign

from bench.assess.recognition import recognised
from bench.cli.assess import command
from bench.defenses.base import Context, Defense, Setting
from bench.defenses.nvflare_percentile import NvflarePercentile
from bench.defenses.nvflare_svt import NvflareSvt
from bench.errors import BenchError
from bench.federated.draws import KeyedDraws
from bench.registry import entries as registry

pytest.importorskip("nvflare", reason="tox -e nvflare")
pytestmark = [pytest.mark.filterwarnings("ignore")]  # NVFLARE's own

PERCENTILE = "nvflare.app_common.filters.percentile_privacy:PercentilePrivacy(percentile=50, gamma=0.01)"
SVT = "nvflare.app_common.filters.svt_privacy:SVTPrivacy(fraction=0.1, epsilon=0.1)"


def filtered(typed: str, gradient: torch.Tensor, rate: float) -> torch.Tensor:
    from bench.assess.nvflare import Filtered, parse

    transform = Filtered(filter=parse(typed, Path()), rate=rate)
    return transform.apply({"w": gradient[None]}, client_context(1))["w"][0]


def client_context(rows: int, *, rate: float = 0.1) -> Context:
    setting = Setting(
        clients=1, per_round=1, rounds=1, steps=1, batch=1, client_examples=1, rate=rate, weight_step=rate
    )
    draws = KeyedDraws(seed=0, fields=("test",), rows=tuple((row,) for row in range(rows)))
    return Context(lead=1, stage="client", round=0, step=0, setting=setting, draws=draws)


def test_a_stock_filter_acts_on_the_weight_difference() -> None:
    """Half of the coordinates are zeroed, others limited to gamma, at a learning rate of 0.1."""
    gradient = torch.linspace(-1, 1, 40)
    out = filtered(PERCENTILE, gradient, 0.1)
    cutoff = np.percentile(np.abs(0.1 * gradient.numpy()), 50)
    expected = np.where(np.abs(0.1 * gradient.numpy()) < cutoff, 0, np.clip(0.1 * gradient.numpy(), -0.01, 0.01)) / 0.1
    assert out.numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("percentile", "gamma"), [(10, 0.01), (70, 0.02), (95, 1e9)])
def test_the_registered_percentile_filter_equals_the_real_filter(percentile: float, gamma: float) -> None:
    given = {"w": torch.randn(3, 41, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
    ours, context = NvflarePercentile(percentile=percentile, gamma=gamma), client_context(3)
    ((transform,),) = ours.transforms(context.setting).values()
    typed = f"nvflare.app_common.filters.percentile_privacy:PercentilePrivacy({percentile}, {gamma})"
    for row, sent in enumerate(transform.apply(given, context)["w"]):
        assert sent.numpy() == pytest.approx(filtered(typed, given["w"][row], 0.1).numpy(), abs=1e-12)


def test_the_registered_svt_filter_chooses_as_often_as_the_library() -> None:
    """Shares of 1500 runs, to five standard errors, and the noise on the largest coordinate, to 25 %."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.svt_privacy import SVTPrivacy

    values, runs = np.array([0.0, 0.2, -0.5, 0.9, 1.0, -3.0, 5.0, 8.0]), 1500
    options: dict[str, Any] = {"fraction": 0.3, "epsilon": 40.0, "noise_var": 10.0, "gamma": 1.0, "tau": 0.5}
    context = client_context(runs, rate=1.0)
    ours = {"w": torch.from_numpy(values).expand(runs, -1)}
    for transform in NvflareSvt(**options).transforms(context.setting)["client"]:
        ours = transform.apply(ours, context)
    theirs, filter_ = [], SVTPrivacy(**options)
    np.random.seed(3)
    for _ in range(runs):
        dxo = DXO(data_kind=DataKind.WEIGHT_DIFF, data={"w": values.copy()})
        theirs.append(filter_.process_dxo(dxo, Shareable(), FLContext()).data["w"])
    shown = [np.asarray(each) for each in (ours["w"], theirs)]
    shares = [(each != 0).mean(0) for each in shown]
    assert np.abs(shares[0] - shares[1]).max() <= 5 * (0.5 / runs) ** 0.5
    sizes = [np.abs(each[each[:, -1] != 0, -1] - 1.0).mean() for each in shown]
    assert sizes == [pytest.approx(0.2, rel=0.25)] * 2


def test_a_random_filter_repeats_and_leaves_the_global_draws_alone() -> None:
    np.random.seed(7)
    before = np.random.get_state(legacy=True)[1].copy()  # type: ignore[index]
    gradient = torch.linspace(-1, 1, 40)
    first, second = (filtered(SVT, gradient, 0.1) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, gradient)
    assert np.array_equal(np.random.get_state(legacy=True)[1], before)  # type: ignore[index]


@pytest.mark.parametrize("typed", ["nvflare.app_common.filters.svt_privacy", "os:getcwd()", "a.b:C(x)", "a.b:C(1)"])
def test_other_text_is_refused_in_a_line(typed: str) -> None:
    from bench.assess.nvflare import parse

    with pytest.raises(BenchError):
        parse(typed, Path())


def test_the_command_ranks_the_filter_among_the_families() -> None:
    said = CliRunner().invoke(command, ["nvflare-filter", PERCENTILE, "--trials", "1"])
    assert said.exit_code == 0, said.output
    rows = [line.split() for line in said.output.splitlines()]
    assert any(row[:3] == ["PercentilePrivacy", "100", "%"] for row in rows)
    assert any(row and row[0].startswith("dp-sgd:") for row in rows)


def test_a_percentile_without_a_limit_is_the_pruning(tmp_path: Path) -> None:
    """Equal updates, and an equal verdict on the same victims."""
    from bench.assess.nvflare import FilterDefense, digits_client, parse

    pruned = foreign.own(cells.entry("defenses", "prune", share=0.7), tmp_path)
    plain = foreign.own(cells.NONE, tmp_path)
    typed = "nvflare.app_common.filters.percentile_privacy:PercentilePrivacy(percentile=70, gamma=1e9)"
    out = filtered(typed, foreign.flat(plain.reading), 0.1)
    ours = foreign.flat(pruned.reading)
    assert float((out - ours).norm() / ours.norm()) <= 1e-6
    client = digits_client()
    made: Defense = registry.instance("defenses", "prune", {"share": 0.7})
    behind = FilterDefense(filter=parse(typed, Path()), rate=0.1)
    one, other = (recognised(client, each, trials=4) for each in (made, behind))
    assert one.share == other.share
