"""The gallery granted to an attacker: candidates that mix the victims' examples with strangers from the gallery
split."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench import rng
from bench.answer.victims import Truth
from bench.cell import AttackCell
from bench.datasets.base import Data
from bench.errors import NotApplicable
from bench.federated.batches import data_key
from bench.scoring.identify import Naming
from bench.trip import READING, SHARED, ByReading, Reconstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery(ByReading):
    """Candidates granted to an attacker: the true examples of all readings among strangers (other examples), in a
    random order drawn by a key."""

    inputs: Tensor = field(metadata=SHARED)
    """(candidate, *shape): inputs of the candidates."""
    labels: Tensor = field(metadata=SHARED)
    """(candidate,): class numbers of the candidates."""
    positions: Tensor = field(metadata=READING)
    """(reading, example): number of the candidate that equals the true example; hidden from the attacker."""


def granted_gallery(cell: AttackCell, data: Data, truth: Truth) -> Gallery | None:
    """Return the gallery of the cell (an experiment), the candidates granted to the attacker: the true examples in
    `truth` among strangers from `data`. None without this grant. The candidates are equal for all defenses and attacks.
    Raises `NotApplicable` for a gallery too small to hold strangers, or too large for the data set's gallery split."""
    if not cell.grants.gallery:
        return None
    strangers = data.gallery
    distinct, first, where = np.unique(truth.indices.numpy(), return_index=True, return_inverse=True)
    count = cell.grants.gallery - len(distinct)
    if not 0 < count <= len(strangers):
        raise NotApplicable(
            f"a gallery of {cell.grants.gallery}: {len(distinct)} examples are victims and there are {len(strangers)} "
            f"strangers; take {len(distinct) + 1} to {len(distinct) + len(strangers)}"
        )
    order = rng.generator(cell.seed, "gallery", data_key(cell, data)).permutation(cell.grants.gallery)
    inputs = torch.cat(
        [truth.inputs.flatten(0, 1)[first], torch.from_numpy(strangers.floats(slice(0, count))).to(truth.inputs)]
    )
    labels = torch.cat([truth.labels.flatten()[first], torch.from_numpy(strangers.labels[:count]).to(truth.labels)])
    place = torch.from_numpy(np.argsort(order))  # example → position in the order
    return Gallery(
        inputs=inputs[order],
        labels=labels[order],
        positions=place[torch.from_numpy(where.reshape(truth.indices.shape))],
    )


def naming(gallery: Gallery, truth: Truth, reconstruction: Reconstruction, *, labels: bool) -> Naming | None:
    """Return which true examples in `truth` the attack named (picked among the candidates in `gallery`), and the chance
    of a blind guess. None if the attack picked no candidates.

    - `reconstruction`: the attack's result; `reconstruction.named` are the picked candidates.
    - `labels`: True if the attacker knows the labels; a blind guess then knows the class."""
    if reconstruction.named is None:
        return None
    named = reconstruction.named.cpu()
    equal = gallery.positions[:, :, None] == named[:, None, :]
    hits = equal[..., : truth.labels.shape[1]].any(-1)
    places = equal.int().argmax(-1).where(equal.any(-1), named.shape[1]) if truth.labels.shape[1] == 1 else None
    chance = naming_chance(gallery.labels, truth.labels, granted=labels)
    return Naming(hits=hits.numpy(), chance=chance, places=None if places is None else places.numpy())


def naming_chance(gallery: Tensor, labels: Tensor, *, granted: bool) -> float:
    """Return the chance that a blind guess among the gallery's candidates is a true example, in [0, 1].

    - `gallery` (candidate,): labels of the candidates.
    - `labels` (reading, example): true labels.
    - `granted`: True if the attacker knows the labels; the guess is then among candidates of the example's class."""
    if not granted:
        return labels.shape[1] / len(gallery)
    own = (labels[:, :, None] == labels[:, None, :]).sum(-1)
    return float((own / torch.bincount(gallery)[labels]).clamp_max(1).mean())


def of_first(places: Sequence[int], hits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the ranks of true examples in the form of a record, an array (reading, example). Only the first true
    example of each reading (observed update) has a rank; all others get -1.

    - `places` (reading,): rank of the first true example among the granted candidates, from 0 (best).
    - `hits` (reading, example): gives the shape."""
    whole = np.full(hits.shape, -1, np.int64)
    whole[:, 0] = places
    return whole
