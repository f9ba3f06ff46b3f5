"""`bench attack`: a gradient of one's own, from a file, attacked; no matrix and no run folder."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
@click.option("--public", type=_file, help="An .npz with public `inputs` [and `labels`]: priors and floors.")
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
    from bench.own import coerce as given
    from bench.own import files as reading_files
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
        given.pictures(true, (len(reading), reading.examples, *reading.shape))
        given.labels(true_labels, len(reading) * reading.examples, reading.classes)
    found = api.attack(
        reading, name, evaluations=evaluations, seed=seed, device=device,
        params=_params(attack_params, "--attack-param"),
    )  # fmt: skip
    scores = None
    if true is not None and true_labels is not None:
        scores = api.score(
            found,
            true,
            true_labels,
            public=known,
            public_labels=known_labels,
            value_range=reading.value_range,
        )
    out = out or Path(f"{reading_file.stem}-leak")
    picture = api.save_pictures(out / "pictures.png", true, found, value_range=reading.value_range)
    kept = out / "reconstruction.npz"
    reading_files.save_arrays(
        kept,
        {"inputs": found.inputs.numpy(), "labels": found.labels.numpy(), "loss": found.loss.numpy(),
         "evaluations": found.evaluations.numpy()},
    )  # fmt: skip
    files = {"pictures": str(picture), "reconstruction": str(kept)}
    if as_json:
        content = _content(name, reading, found, scores)
        click.echo(json.dumps({**content, "files": files}, indent=1, allow_nan=False))
    else:
        click.echo("\n".join([*_words(name, reading, found, scores), *map(str, files.values())]))


def _examples(path: Path, *, needs_labels: bool) -> "tuple[NDArray[Any], NDArray[Any] | None]":
    from bench.errors import RecordError
    from bench.own.files import load_arrays

    arrays = load_arrays(path)
    for name in ("inputs", "labels") if needs_labels else ("inputs",):
        if name not in arrays:
            raise RecordError(f"{path}: no array {name!r}; it holds {', '.join(arrays) or 'none'}")
    return arrays["inputs"], arrays.get("labels")


def _params(given: tuple[str, ...], option: str) -> dict[str, Any]:
    """`restarts=2` as a number, `activation=relu` as text."""
    from bench.errors import BenchError

    found: dict[str, Any] = {}
    for item in given:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise BenchError(f"{option} is KEY=VALUE, got {item!r}")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _content(
    name: str, reading: "Reading", found: "Reconstruction", scores: "Scores | None"
) -> dict[str, Any]:
    from bench.scoring.score import plain

    return {
        "attack": name,
        "point": reading.point.name,
        "readings": [
            {
                "status": found.status[row],
                "loss": plain(float(found.loss[row])),
                "labels": found.labels[row].tolist(),
                "evaluations": int(found.evaluations[row]),
            }
            for row in range(len(reading))
        ],
        "scores": None if scores is None else {"summary": scores.summary, "readings": scores.readings},
    }


def _words(name: str, reading: "Reading", found: "Reconstruction", scores: "Scores | None") -> list[str]:
    lines = []
    for row, one in enumerate(_content(name, reading, found, scores)["readings"]):
        labels = ", ".join("unknown" if label < 0 else str(label) for label in one["labels"])
        loss = "not a number" if one["loss"] is None else f"{one['loss']:.3g}"
        line = f"reading {row}: {one['status']}, loss {loss} after {one['evaluations']} evaluations"
        lines.append(f"{line}, labels {labels}")
        if scores is not None:
            lines += [f"  {_picture(picture)}" for picture in scores.readings[row]["pictures"]]
    if scores is None:
        return [*lines, "no --truth was given, so nothing is scored"]
    share, count = scores.summary["asr"], scores.summary["pictures"]
    bound = "at least " if scores.summary["lower_bound"] else ""
    return [
        *lines,
        f"leaked: {bound}{round(share * count)} of {count} pictures",
        f"floors are of {scores.summary['floors_from']}",
    ]


def _picture(picture: dict[str, Any]) -> str:
    figures = (
        ("PSNR", picture["psnr_db"], " dB"),
        ("best floor", picture["best_floor_db"], " dB"),
        ("SSIM", picture.get("ssim"), ""),
        ("RMSE", picture["rmse"], ""),
    )
    told = ", ".join(f"{label} {value:.3g}{unit}" for label, value, unit in figures if value is not None)
    return f"label {picture['label']}: {told or 'not a number'}{', leaked' if picture['success'] else ''}"
