"""An experiment's federated setting in the form that defenses get."""

from bench.cell import Federated
from bench.defenses.base import Public, Setting


def setting_of(
    federated: Federated,
    *,
    rounds: int,
    client_examples: int,
    public: Public | None = None,
    colluders: float = 0.0,
    dummies: int = 0,
) -> Setting:
    """Return the federated setting in the form that defenses get.

    - `federated`: the experiment's federated setting.
    - `rounds`: number of rounds.
    - `client_examples`: number of examples of each client.
    - `public`: public model, weights and examples that a defense may use; None without them.
    - `colluders`: share of a client's partners (other clients with whom the client exchanges messages) that collude
      with the attacker.
    - `dummies`: number of a round's clients that the attacker controls."""
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
        dummies=dummies,
    )
