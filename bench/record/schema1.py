"""Records of schema 1 → schema 2: the same content in the field's words.  Nothing changed its meaning.

A cell of schema 1 spelt four options of an attack and its grants otherwise, so that its id is another: the
record keeps the old id, which was the hash of the old spelling, and its cell has the new one.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bench.cell import AnyCell, AttackCell
from bench.errors import RecordError
from bench.record.metrics import METRICS

SCHEMA = 1
OPTIONS = {  # of attacks, as they were called
    "search": "line_search",
    "finish": "refine_float64",
    "mute": "exclude",
    "scale_free": "unknown_scale",
}
ARRAYS = {"trail": "trajectory"}
_OWN = "gradient-leakage-bench"
_EXAMPLE = {"guess": "matched", "floors_db": "priors_db", "best_floor_db": "prior_db", "over_floor_db": "over_prior_db"}
_READING = {"reading_snr_db": "snr_db", "reading_cosine": "cosine", "examples": "indices", "pictures": "examples"}
_METRIC = {"over_prior_db": "over_floor_db"}
_CONDITIONS = {"pictures_per_reading": "examples_per_reading"}
# No part of an id where they had no value.
_ADDED_LATER = ("until_accuracy", "until_epsilon", "bayesian", "colluders", "reference", "after")
_TRAINING_COST = (
    "seconds_per_round",
    "milliseconds_per_step",
    "undefended_milliseconds_per_step",
    "overhead",
    "overhead_quartiles",
)

_GRANTS = ("labels", "repeated_readings", "colluders")
_SHARES = ("asr", "asr_strict", "readings_leaked", "identification")

Json = dict[str, Any]


def to_json(record: Json) -> str:
    """The text that bench wrote of a record of schema 1."""
    return json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"


def upgraded(old: Json) -> Json:
    """The JSON of a record of schema 1 as schema 2 has it.

    Raises `RecordError` where its id is not the hash of its cell, and LookupError, TypeError, ValueError or
    AttributeError where its fields are not a record's.
    """
    if _id(old["cell"]) != old["id"]:
        raise RecordError("its id is not the hash of its cell; it was altered")
    own = old["source"].get("attack", {}).get("distribution") == _OWN
    return {
        "schema": 2,
        "id": old["id"],
        "status": old["status"],
        "reason": old.get("reason"),
        "cell": cell(old["cell"], rename=own),
        "provenance": _provenance(old["source"]),
        "result": _result(old),
        "environment": old["environment"] or None,
        "cost": _cost(old["cost"]),
    }


def cell(old: Json, *, rename: bool = True) -> Json:
    """The JSON of a cell; `rename` the options of its attack, which are bench's own words."""
    new = dict(old)
    if old["kind"] != "attack":
        return new
    grants = {name: new.pop(name) for name in _GRANTS if name in new}
    if rename:
        params = {OPTIONS.get(name, name): value for name, value in old["attack"]["params"].items()}
        new["attack"] = {**old["attack"], "params": params}
    return {**new, "grants": grants}


def id_of(new: AnyCell) -> str:
    """The id that a cell had in schema 1; its own where nothing in it was spelt otherwise."""
    content = new.model_dump(mode="json")
    if isinstance(new, AttackCell):
        if set(new.grants.granted()) - set(_GRANTS):
            return new.id  # schema 1 had no such grant
        content |= {name: content["grants"][name] for name in _GRANTS}
        del content["grants"]
        words = {word: name for name, word in OPTIONS.items()}
        params = {words.get(name, name): value for name, value in new.attack.params.items()}
        content["attack"] = {**content["attack"], "params": params}
    return _id(content)


def _id(old: Json) -> str:
    content = {name: value for name, value in old.items() if value or name not in _ADDED_LATER}
    content.pop("checkpoints", None)
    if isinstance(content.get("weights"), dict):
        content["weights"] = {k: v for k, v in content["weights"].items() if k not in ("path", "series")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _provenance(source: Json) -> Json:
    parts: Json = {name: _code(part) for name, part in source.items() if name not in ("bench", "weights")}
    return {**parts, "bench": {"origin": _OWN, **source["bench"]}, "weights": source.get("weights")}


def _code(part: Json) -> Json:
    rest: Json = {name: part[name] for name in ("sha256", "version", "protocol") if name in part}
    if "plugin" in part:
        return {"origin": part["plugin"], "plugin": True, **rest}
    return {"origin": part["distribution"], **rest}


def _cost(old: Json) -> Json:
    new = {name: value for name, value in old.items() if name not in _TRAINING_COST}
    training = {name: old[name] for name in _TRAINING_COST if name in old}
    return {**new, "training": training or None}


def _result(old: Json) -> Json | None:
    if old["status"] != "done":
        return None
    return _attack(old) if old["cell"]["kind"] == "attack" else _training(old["summary"])


def _training(summary: Json) -> Json:
    names = ("accuracy", "curve", "rounds", "diverged", "checkpoints", "upload_bytes", "private")
    new: Json = {name: summary[name] for name in names if name in summary}
    bayesian = summary.get("bayesian")
    if bayesian is not None:
        rounds = {
            level: [{"round": int(at), "epsilon": ours, "moments_epsilon": other} for at, ours, other in rows]
            for level, rows in bayesian["by_round"].items()
        }
        new["bayesian"] = {**bayesian, "by_round": rounds}
    return {"kind": "training", "curve": [], **new, "privacy": _privacy(summary)}


def _attack(old: Json) -> Json:
    summary = old["summary"]
    losses = summary.get("loss_history")
    conditions = _renamed(summary.get("conditions", {}), _CONDITIONS)
    conditions.pop("private", None)
    return {
        "kind": "attack",
        "readings": [_reading(victim) for victim in old["victims"]],
        "summary": _summary(summary),
        "distortion": {
            name: summary.get(f"reading_{name}") for name in ("snr_db_median", "snr_db_least", "cosine_median")
        },
        "self_check": {
            name: summary.get(name) for name in ("distance_at_truth", "distance_at_public", "recognises_truth")
        },
        "conditions": conditions,
        "privacy": _privacy(summary),
        "trajectory": losses
        and {"losses": [loss for _, loss in losses], "evaluations": summary.get("trail_evaluations", [])},
        "private": summary.get("private", False),
        "lpips_absent": summary.get("lpips_absent"),
        "notes": summary.get("notes", []),
        "arrays": old.get("arrays"),
    }


def _reading(victim: Json) -> Json:
    return _renamed(victim, _READING) | {"examples": [_renamed(e, _EXAMPLE) for e in victim["pictures"]]}


def _renamed(old: Json, names: Mapping[str, str]) -> Json:
    return {names.get(name, name): value for name, value in old.items()}


def _summary(old: Json) -> Json | None:
    """None where a baseline left it out."""
    if "asr" not in old:
        return None
    kept = (
        "readings",
        "lower_bound",
        "identification_chance",
        "gallery",
        "label_accuracy",
        "evaluations_median",
        "outer_median",
        "diverged_share",
        "nan_share",
        "missing_share",
        "prior_beaten",
        "beats_prior",
    )
    medians = {m.name: old.get(f"{_METRIC.get(m.name, m.name)}_median") for m in METRICS}
    return {
        **{name: old[name] for name in kept},
        "examples": old["pictures"],
        "medians": medians,
        "priors": old["floors"],
        **{name: _share(old, name) for name in _SHARES},
    }


def _share(old: Json, name: str) -> Json | None:
    value = old.get(name)
    return None if value is None else {"value": value, "low": old[f"{name}_low"], "high": old[f"{name}_high"]}


def _privacy(summary: Mapping[str, Any]) -> Json:
    epsilon, absent = summary.get("epsilon"), summary.get("epsilon_absent")
    return {"epsilon": epsilon, "absent": absent, "figures": summary.get("privacy", [])}
