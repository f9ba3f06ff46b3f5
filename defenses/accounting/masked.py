"""Masked privacy costs: a server reads the sum or the maximum of the clients' Bayesian costs, and no single cost.

    K    number of clients in a round            R    number of values in a message, 2^width
    m    masks on a message's numbers, uniform modulo R; the masks in a round have sum 0

A client's cost depends on its data, so Triastcyn & Faltings 2019 (§V-B, §V-C) ask for secure computation.  Masks have
the distribution given by pairwise seeds (Bonawitz et al. 2017, §4), as in `transforms/ring.py`: any K - 1 messages are
independent and uniform.  Updates have few bits and are rounded at random there; costs are rounded up here, so ε is
never understated."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from bench.defenses.accounting.bayesian import LEAST_SAMPLES, Floats

Integers = NDArray[np.object_]
FRACTION = 88  # bits of a cost below one; a cost has an error below 2^-88
WIDTH = 128  # log₂ R, for costs
_DIGIT = 4  # bits of a maximum found by one exchange of messages
_WORD = 64  # bits of a float, and of the messages for a maximum


def messages(integers: Integers, random: np.random.Generator, *, width: int = WIDTH) -> Integers:
    """Return each client's masked message, (client, …) like `integers`, from 0 to 2^`width` - 1. A single message, and
    any K - 1 messages together, are uniform for all `integers`; the messages' sum modulo R equals the integers' sum.

    - `integers` (client, …): each client's numbers, not negative, with a sum below 2^`width`.
    - `random`: generator for the masks."""
    size = width // 8
    drawn = random.bytes(size * integers.size)
    secrets = np.array(
        [int.from_bytes(drawn[at : at + size], "little") for at in range(0, len(drawn), size)], dtype=object
    ).reshape(integers.shape)
    sent: Integers = (integers + secrets - np.roll(secrets, -1, 0)) % (1 << width)
    return sent


def total(sent: Integers, clients: int, *, width: int = WIDTH) -> Integers:
    """Return the sum over all clients' numbers, read by the server from the masked messages `sent` (client, …), made by
    `messages` with the same `width`. `clients`: K, the number of clients with common masks. Raises `ValueError` if a
    client's message is missing, because the masks then do not cancel and the sum is uniform."""
    if len(sent) != clients:
        raise ValueError(
            f"{len(sent)} of {clients} clients sent a masked cost, and masks cancel only in the sum of all; "
            "let the clients that are left agree on new masks and send again"
        )
    read: Integers = sent.sum(0) % (1 << width)
    return read


def fixed(costs: Floats) -> Integers:
    """Return the clients' costs (client, …) as integers in units of 2^-`FRACTION`, rounded up. A negative cost becomes
    0. An infinite cost, NaN, or a cost above a limit becomes this limit, which `summed` reads as infinite:
    2^(`WIDTH` - `FRACTION` - b), with b binary digits in the number of clients."""
    most = math.ldexp(_limit(len(costs)), -FRACTION)
    bounded = np.where(costs < most, np.maximum(costs, 0.0), most)
    rounded = [math.ceil(math.ldexp(float(each), FRACTION)) for each in bounded.flat]
    return np.array(rounded, dtype=object).reshape(costs.shape)


def summed(costs: Floats, random: np.random.Generator) -> Floats:
    """Return the sum of the clients' costs, (order,), as read by the server from masked messages (sequential
    accounting, §V-B1): exact up to K·2^-`FRACTION`, and not below the true sum. Infinite at an order if a client's cost
    is above the limit in `fixed`. `costs` (client, order): each client's costs; `random`: generator for the masks."""
    read = total(messages(fixed(costs), random), len(costs))
    return np.array([_value(each, len(costs)) for each in read])


def answers(reached: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.uint64]:
    """Return masked answers to comparisons, (client, …) like `reached`, from which a server reads only whether any
    client answers yes: the sum over clients modulo 2^64 is 0 if no client does, and uniform otherwise.

    - `reached` (client, …): each client's yes or no.
    - `random`: generator for answers and masks."""
    yes, secrets = random.integers(1 << _WORD, size=(2, *reached.shape), dtype=np.uint64)
    sent: NDArray[np.uint64] = np.where(reached, yes, np.uint64(0)) + secrets - np.roll(secrets, -1, 0)
    return sent  # uint64 is modulo 2^64


def largest(costs: Floats, random: np.random.Generator) -> Floats:
    """Return the clients' largest cost, (order,), as read by the server from masked messages (parallel accounting,
    §V-B2): the exact float, without further information about costs.

    The 64 bits of a positive float, as an integer, have the float's order. Sixteen exchanges find four bits each. In an
    exchange each client compares its bits with 15 thresholds, and answers a random number modulo 2^64 if its bits reach
    the threshold, 0 otherwise. The masked sum is uniform if any client reaches the threshold, for any number of such
    clients, and 0 otherwise. A maximum is read too low with probability 2^-56 at most, for each order.

    `costs` (client, order): each client's costs; a negative cost counts as 0, NaN as infinite. `random`: generator for
    masks and answers."""
    bits = np.where(np.isnan(costs), np.inf, np.maximum(costs, 0.0)).view(np.uint64)
    found = np.zeros(costs.shape[1:], np.uint64)
    for place in reversed(range(0, _WORD, _DIGIT)):
        steps = np.arange(1, 1 << _DIGIT, dtype=np.uint64) << np.uint64(place)
        reached = bits[..., None] >= found[..., None] + steps
        read = (answers(reached, random).sum(0, dtype=np.uint64) != 0).sum(-1).astype(np.uint64)
        found = found + (read << np.uint64(place))
    values: Floats = found.view(np.float64)
    return values


def cost(moments: Floats, random: np.random.Generator, *, estimator: float, rounds: int = 1) -> Floats:
    """Return a round's privacy cost, (λ,), as `bayesian.cost`, from masked sums over clients (joint accounting, §V-C):
    at each order the server reads Σe and Σe², with e = exp(moment) - 1, and no client's moment.

    - `moments` (client, λ): each client's log moments, from `bayesian.log_moments`.
    - `random`: generator for the masks.
    - `estimator`: δ', probability for a too low estimate.
    - `rounds`: T, number of rounds; above 1, Hölder's inequality corrects for dependent rounds.

    Rounding raises each e by 2^-`FRACTION` at most. The cost is infinite at an order if a client's e is above the limit
    in `fixed`. Raises `ValueError` for fewer than three clients."""
    count = len(moments)
    if count < LEAST_SAMPLES:
        raise ValueError(f"a cost needs {LEAST_SAMPLES} sampled rows, got {count}")
    with np.errstate(over="ignore"):
        excess = fixed(np.expm1(rounds * moments))
    first = total(messages(excess, random), count)
    second = total(messages(excess * excess, random, width=2 * WIDTH), count, width=2 * WIDTH)
    quantile = -float(stdtrit(count - 1, estimator)) / math.sqrt(count - 1)
    bounds = []
    for of_one, of_square in zip(first, second, strict=True):
        deviation = math.sqrt((count * of_square - of_one * of_one) / (count * count << 2 * FRACTION))
        bounds.append(_value(of_one, count) / count + quantile * deviation)
    costs: Floats = np.log1p(np.array(bounds)) / rounds
    return costs


def _limit(clients: int) -> int:
    return 1 << WIDTH - clients.bit_length()  # a power of two is a float without rounding


def _value(read: int, clients: int) -> float:
    return read / (1 << FRACTION) if read < _limit(clients) else math.inf
