"""`bench attack`: a gradient of one's own, from a file, attacked; no matrix and no run folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bench.record.schema import ExampleScore
    from bench.scoring.score import Scores
    from bench.trip import Reading, Reconstruction

_file = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--reading", "reading_file", type=_file, required=True, help="The gradient: a reading file.")
@click.option("--model", required=True, metavar="NAME", help="The registered model it was taken on.")
@click.option("--model-param", "model_params", multiple=True, metavar="KEY=VALUE", help="Of the model.")
@click.option("--weights", type=_file, help="Its weights: .safetensors, .npz or .pt [default: the file's].")
@click.option("--attack", "name", default="cpl", show_default=True, metavar="NAME")
@click.option("--attack-param", "attack_params", multiple=True, metavar="KEY=VALUE", help="Of the attack.")
@click.option("--evaluations", type=click.IntRange(1), default=500, show_default=True, help="Per reading.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the attack's start.")
@click.option("--truth", type=_file, help="An .npz with the true `inputs` and `labels`, to score by.")
@click.option("--public", type=_file, help="An .npz with public `inputs` [and `labels`]: for priors.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder [default: FILE-leak].")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE|MODULE", help="Add entries of your own.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    reading_file: Path, model: str, model_params: tuple[str, ...], weights: Path | None, name: str,
    attack_params: tuple[str, ...], evaluations: int, seed: int, truth: Path | None, public: Path | None,
    out: Path | None, plugins: tuple[str, ...], device: Literal["auto", "cpu", "cuda"], as_json: bool,
) -> None:  # fmt: skip
    """Attack a gradient of your own: pictures and reconstruction.npz go to --out.

    The reading file is an .npz that `api.save_reading` writes: value/<parameter>, weight/<parameter>
    and meta.  A truth is only for the scores: the attack does not see it.

    \b
    bench attack --reading mine.npz --model dlg-lenet --truth truth.npz
    """
    from bench import api
    from bench.own import coerce, files
    from bench.record.checkpoints import read_weights
    from bench.registry import entries as registry

    for plugin in plugins:
        registry.add_plugin(plugin)
    known, known_labels = (None, None) if public is None else _examples(public, needs_labels=False)
    true, true_labels = (None, None) if truth is None else _examples(truth, needs_labels=True)
    reading = api.open_reading(
        reading_file, model=model, weights=None if weights is None else read_weights(weights),
        params=_params(model_params, "--model-param"), public=known, public_labels=known_labels,
    )  # fmt: skip
    if true is not None and true_labels is not None:  # before the attack spends its minutes
        coerce.like_reading(true, (len(reading), reading.examples, *reading.shape))
        coerce.labels(true_labels, len(reading) * reading.examples, reading.classes)
    reconstruction = api.attack(
        reading, name, evaluations=evaluations, seed=seed, device=device,
        params=_params(attack_params, "--attack-param"),
    )  # fmt: skip
    scores = None
    if true is not None and true_labels is not None:
        scores = api.score(
            reconstruction, true, true_labels, public=known, public_labels=known_labels,
            value_range=reading.value_range,
        )  # fmt: skip
    out = out or Path(f"{reading_file.stem}-leak")
    picture = api.save_pictures(out / "pictures.png", true, reconstruction, value_range=reading.value_range)
    kept = out / "reconstruction.npz"
    files.save_arrays(
        kept,
        {name: getattr(reconstruction, name).numpy() for name in ("inputs", "labels", "loss", "evaluations")},
    )
    paths = {"pictures": str(picture), "reconstruction": str(kept)}
    if as_json:
        content = _content(name, reading, reconstruction, scores)
        click.echo(json.dumps({**content, "files": paths}, indent=1, allow_nan=False))
    else:
        click.echo("\n".join([*_text(name, reading, reconstruction, scores), *paths.values()]))


def _examples(path: Path, *, needs_labels: bool) -> "tuple[NDArray[Any], NDArray[Any] | None]":
    from bench.errors import RecordError
    from bench.own.files import load_arrays

    arrays = load_arrays(path)
    for name in ("inputs", "labels") if needs_labels else ("inputs",):
        if name not in arrays:
            raise RecordError(f"{path}: no array {name!r}; it holds {', '.join(arrays) or 'none'}")
    return arrays["inputs"], arrays.get("labels")


def _params(options: tuple[str, ...], name: str) -> dict[str, Any]:
    """`restarts=2` as a number, `activation=relu` as text."""
    from bench.errors import BenchError

    params: dict[str, Any] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not key or not equals:
            raise BenchError(f"{name} is KEY=VALUE, got {option!r}")
        try:
            params[key] = json.loads(text)
        except ValueError:
            params[key] = text
    return params


def _content(
    name: str, reading: "Reading", reconstruction: "Reconstruction", scores: "Scores | None"
) -> dict[str, Any]:
    from bench.scoring.score import plain

    return {
        "attack": name,
        "point": reading.point.name,
        "readings": [
            {
                "status": reconstruction.status[row],
                "loss": plain(float(reconstruction.loss[row])),
                "labels": reconstruction.labels[row].tolist(),
                "evaluations": int(reconstruction.evaluations[row]),
            }
            for row in range(len(reading))
        ],
        "scores": None if scores is None else {
            "summary": asdict(scores.summary), "readings": [asdict(row) for row in scores.readings],
            "lpips_absent": scores.lpips_absent, "priors_from": scores.priors_from,
        },
    }  # fmt: skip


def _text(
    name: str, reading: "Reading", reconstruction: "Reconstruction", scores: "Scores | None"
) -> list[str]:
    lines = []
    for row, item in enumerate(_content(name, reading, reconstruction, None)["readings"]):
        labels = ", ".join("unknown" if label < 0 else str(label) for label in item["labels"])
        loss = "not a number" if item["loss"] is None else f"{item['loss']:.3g}"
        line = f"reading {row}: {item['status']}, loss {loss} after {item['evaluations']} evaluations"
        lines.append(f"{line}, labels {labels}")
        if scores is not None:
            lines += [f"  {_example(example)}" for example in scores.readings[row].examples]
    if scores is None:
        return [*lines, "no --truth was given, so nothing is scored"]
    leaked = sum(example.success for reading in scores.readings for example in reading.examples)
    bound = "at least " if scores.summary.lower_bound else ""
    return [
        *lines,
        f"leaked: {bound}{leaked} of {scores.summary.examples} examples",
        f"the prior-only baselines are of {scores.priors_from}",
    ]


def _example(example: "ExampleScore") -> str:
    figures = (
        ("PSNR", example.psnr_db, " dB"), ("best prior", example.prior_db, " dB"), ("SSIM", example.ssim, ""),
        ("RMSE", example.rmse, ""),
    )  # fmt: skip
    text = ", ".join(f"{label} {value:.3g}{unit}" for label, value, unit in figures if value is not None)
    return f"label {example.label}: {text or 'not a number'}{', leaked' if example.success else ''}"
