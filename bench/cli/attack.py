"""`bench attack`: attack a gradient from a file, without a matrix or a run folder."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from bench.cli import common
from bench.errors import RecordError
from bench.own import files
from bench.record.npz import Arrays
from bench.record.schema import ExampleScore

if TYPE_CHECKING:
    from bench.scoring.score import Scores
    from bench.trip import Reading, Reconstruction


@click.command()
@click.option(
    "--reading", "reading_file", type=common.FILE, required=True, help="Reading file with the gradient or update."
)
@common.reading_model
@click.option("--attack", "name", default="cpl", show_default=True, metavar="NAME", help="Attack.")
@common.params_option("--attack-param", "attack_params", "Parameter of the attack.")
@click.option(
    "--evaluations",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="Gradient evaluations for each reading.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attack's start.")
@click.option("--truth", type=common.FILE, help="True `inputs` and `labels` (.npz), for scores.")
@click.option("--public", type=common.FILE, help="Public `inputs` and, if known, `labels` (.npz), for priors.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the results [default: FILE-leak]."
)
@common.plugins
@common.device
@common.json_flag
def command(
    reading_file: Path,
    model: str,
    model_params: dict[str, Any],
    weights: Path | None,
    name: str,
    attack_params: dict[str, Any],
    evaluations: int,
    seed: int,
    truth: Path | None,
    public: Path | None,
    out: Path | None,
    device: Literal["auto", "cpu", "cuda"],
    as_json: bool,
) -> None:
    """Attack your own gradient, and write pictures and reconstruction.npz to --out.

    `api.save_reading` writes the reading file, an .npz with value/<parameter>, weight/<parameter> and meta. The truth
    serves only for scores; the attack never gets the truth.

    \b
    bench attack --reading mine.npz --model dlg-lenet --truth truth.npz
    """
    from bench import api

    reading, known = opened(reading_file, model, model_params, weights, public)
    true = {} if truth is None else examples(truth, "inputs", "labels")
    public_examples, public_labels = known.get("inputs"), known.get("labels")
    # check before the attack, which takes minutes
    checked = api.check(reading, true.get("inputs"), true.get("labels"))
    reconstruction = api.attack(reading, name, evaluations=evaluations, seed=seed, device=device, params=attack_params)
    scores, value_range = None, reading.value_range
    if true:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the printed text includes the warning
            scores = api.score(
                reconstruction,
                true["inputs"],
                true["labels"],
                public=public_examples,
                public_labels=public_labels,
                value_range=value_range,
                labels_known=reading.labels is not None and public_labels is not None,
            )
    out = out or Path(f"{reading_file.stem}-leak")
    picture = api.save_pictures(out / "pictures.png", true.get("inputs"), reconstruction, value_range=value_range)
    kept = out / "reconstruction.npz"
    names = ("inputs", "labels", "loss", "evaluations")
    files.save_arrays(kept, {name: getattr(reconstruction, name).numpy() for name in names})
    paths = {"pictures": str(picture), "reconstruction": str(kept)}
    content = {**_content(name, reading, reconstruction, scores), "check": asdict(checked)}
    if as_json:
        click.echo(json.dumps({**content, "files": paths}, indent=1, allow_nan=False))
    else:
        click.echo("\n".join([*_text(content, scores), *paths.values()]))


def opened(
    path: Path, model: str, params: dict[str, Any], weights: Path | None, public: Path | None
) -> "tuple[Reading, Arrays]":
    """Return the reading (observed update) in the file `path`, and the arrays of the file `public`, name → array.

    - `model`, `params`: name and parameters of the model behind the reading, as registered.
    - `weights`: file with the model's weights; None: the weights in the reading file.
    - `public`: file with public examples; None: no public examples.

    Raises `BenchError` for an unsuitable file or model."""
    from bench import api
    from bench.record.checkpoints import read_weights

    known = {} if public is None else examples(public, "inputs")
    reading = api.open_reading(
        path,
        model=model,
        weights=None if weights is None else read_weights(weights),
        params=params,
        public=known.get("inputs"),
        public_labels=known.get("labels"),
    )
    return reading, known


def examples(path: Path, *names: str) -> Arrays:
    """Return the arrays in the `.npz` file at `path`, name → array. Raises `RecordError` if one of the arrays `names`
    is missing."""
    arrays = files.load_arrays(path)
    for name in names:
        if name not in arrays:
            raise RecordError(f"{path}: no array {name!r}; it holds {', '.join(arrays) or 'none'}")
    return arrays


def _content(
    name: str, reading: "Reading", reconstruction: "Reconstruction", scores: "Scores | None"
) -> dict[str, Any]:
    from bench.scoring.score import plain

    rows = [
        {"status": status, "loss": plain(loss), "labels": labels, "evaluations": evaluations}
        for status, loss, labels, evaluations in zip(
            reconstruction.status,
            reconstruction.loss.tolist(),
            reconstruction.labels.tolist(),
            reconstruction.evaluations.tolist(),
            strict=True,
        )
    ]
    scored = scores and {
        "summary": asdict(scores.summary),
        "readings": [asdict(row) for row in scores.readings],
        "lpips_absent": scores.lpips_absent,
        "st_lpips_absent": scores.st_lpips_absent,
        "priors_from": scores.priors_from,
    }
    return {"attack": name, "point": reading.point.name, "readings": rows, "scores": scored}


def _text(content: dict[str, Any], scores: "Scores | None") -> Iterator[str]:
    for row, item in enumerate(content["readings"]):
        labels = ", ".join("unknown" if label < 0 else str(label) for label in item["labels"])
        loss = "not a number" if item["loss"] is None else f"{item['loss']:.3g}"
        yield (f"reading {row}: {item['status']}, loss {loss} after {item['evaluations']} evaluations, labels {labels}")
        yield from (f"  {_example(example)}" for example in (scores.readings[row].examples if scores else ()))
    if scores is None:
        yield "no --truth was given, so nothing is scored"
        yield f"declaration: {content['check']['line']}"
        return
    yield f"declaration: the truth {content['check']['line']}"
    if scores.doubt is not None:
        yield "leaked: unknown, as the reading does not match its declaration"
        return
    leaked = sum(example.success for reading in scores.readings for example in reading.examples)
    bound = "at least " if scores.summary.lower_bound else ""
    yield f"leaked: {bound}{leaked} of {scores.summary.examples} examples"
    yield f"the prior-only baselines are of {scores.priors_from}"


def _example(example: ExampleScore) -> str:
    figures = (
        ("PSNR", example.psnr_db, " dB"),
        ("best prior", example.prior_db, " dB"),
        ("SSIM", example.ssim, ""),
        ("RMSE", example.rmse, ""),
    )
    text = ", ".join(f"{label} {value:.3g}{unit}" for label, value, unit in figures if value is not None)
    return f"label {example.label}: {text or 'not a number'}{', leaked' if example.success else ''}"
