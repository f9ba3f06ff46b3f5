"""A configuration's federated setting in the form that defenses get."""

from bench.cell import Federated
from bench.defenses.base import Public, Setting


def setting_of(
    federated: Federated, *, rounds: int, client_examples: int, public: Public | None = None, colluders: float = 0.0
) -> Setting:
    """Return the setting for a training over `rounds` rounds of clients with `client_examples` examples each; `public`
    and `colluders` are fields of `Setting`."""
    return Setting(
        clients=federated.clients,
        per_round=federated.per_round,
        rounds=rounds,
        steps=federated.steps,
        batch=federated.batch,
        client_examples=client_examples,
        rate=federated.rate,
        weight_step=federated.rate if federated.algorithm == "fedsgd" else 1.0,
        public=public,
        colluders=colluders,
    )
