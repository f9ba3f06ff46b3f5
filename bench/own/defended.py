"""A user's reading together with the description of the client's defense, for an adaptive attacker."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from bench.defenses.base import Defense, Public, Setting
from bench.errors import BenchError
from bench.federated.describe import describe, untouched
from bench.federated.stages import stages
from bench.registry import entries as registry
from bench.sanitize import first_line
from bench.trip import Reading

Chosen = str | Mapping[str, Any] | Defense


def defended(
    reading: Reading, chosen: Chosen, *, clients: int = 1, per_round: int | None = None, rounds: int = 1
) -> Reading:
    """Return a user's reading (observed update) with a description of the client's defense, so that attacks can
    simulate and undo the defense.

    - `chosen`: the defense: a name, {"name": …, parameter: …}, or a `Defense`.
    - `clients`, `per_round`, `rounds`: numbers of clients, of clients per round (None: all), and of rounds; these
      matter only for defenses whose noise depends on them.

    Raises `BenchError` for an unknown defense, and for a defense without an effect or a description at the reading's
    interception point."""
    defense = instance(chosen)
    if reading.weight_decay:
        raise BenchError("weight decay and a defense together are not simulated; leave one of them out")
    if reading.ragged:
        raise BenchError("a defense and a smaller last batch together are not simulated; give `steps` of whole batches")
    setting = setting_of_reading(reading, clients=clients, per_round=per_round, rounds=rounds)
    shapes = {name: tuple(value.shape[1:]) for name, value in reading.weights.items()}
    try:
        made = stages(defense, setting, shapes)
    except (ValueError, TypeError) as error:
        raise BenchError(f"defense {_name(chosen)}: {first_line(error)}") from None
    if untouched(made, reading.point):
        raise BenchError(
            f"defense {_name(chosen)} does nothing at {reading.point.name}, where this reading is of; give it at="
            "'client' if it can, or no defense"
        )
    probe: dict[str, Tensor] = {name: value[0, 0] for name, value in reading.values.items()}
    description = describe(
        made,
        reading.point,
        round_=0,
        unit=reading.unit * reading.steps,
        probe=probe,
        weights={name: value[0] for name, value in reading.weights.items()},
    )
    if description is None:
        raise BenchError(
            f"defense {_name(chosen)} cannot be described of one client's reading: what it shows depends on others"
        )
    return replace(reading, description=description)


def setting_of_reading(reading: Reading, *, clients: int = 1, per_round: int | None = None, rounds: int = 1) -> Setting:
    """Return the federated setting (numbers of clients, steps, examples, and the learning rate) behind a user's reading
    (observed update), in the form that defenses get. `rounds` is the number of rounds; in each take part `per_round` of
    the `clients` clients (None: all)."""
    return Setting(
        clients=clients,
        per_round=per_round or clients,
        rounds=rounds,
        steps=reading.steps,
        batch=reading.batch,
        client_examples=reading.client_examples,
        rate=reading.rate,
        weight_step=reading.rate if reading.unit == 1 else 1.0,
        public=Public(
            model=reading.model,
            weights={name: value[0] for name, value in reading.weights.items()},
            inputs=reading.public_inputs,
            labels=reading.public_labels.clamp_min(0),
            classes=reading.classes,
        ),
    )


def instance(chosen: Chosen) -> Defense:
    """Return the defense that a user chose: `chosen` is a name, {"name": …, parameter: …}, or a `Defense`. Raises
    `BenchError` for other values and unknown names."""
    if isinstance(chosen, Defense):
        return chosen
    if isinstance(chosen, str):
        chosen = {"name": chosen}
    if not isinstance(chosen, Mapping):
        raise BenchError(f"defense: give its name, a mapping with its name, or a Defense, not {chosen!r:.60}")
    params = dict(chosen)
    name = params.pop("name", None)
    if not isinstance(name, str):
        raise BenchError('defense: give its name, {"name": "prune", "share": 0.9}, or a Defense')
    made: Defense = registry.instance("defenses", name, params)
    return made


def _name(chosen: Chosen) -> str:
    if isinstance(chosen, Defense):
        return type(chosen).__name__
    return repr(chosen if isinstance(chosen, str) else chosen.get("name"))
