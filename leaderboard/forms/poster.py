"""Draw the standings as a single picture: SVG, and PNG or PDF converted from it."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from xml.etree.ElementTree import Element, SubElement

from PIL import Image

from bench.leaderboard.forms.charts import svg_to_pdf, svg_to_png
from bench.leaderboard.forms.standings import columns, figures
from bench.leaderboard.forms.strips import VICTIMS_NAME
from bench.leaderboard.forms.svg import embed, svg_root, written
from bench.leaderboard.standings import Standing
from bench.points import POINTS

_ROW, _TOP, _LEFT, _CELL, _TILE = 38, 98, 20, 78, 28
_SIZE, _SMALL, _LETTER = 14, 10, 7.2  # text sizes, and a letter's greatest width
_INK, _QUIET, _LINE, _PAPER = "#1b232b", "#56626e", "#dde3e8", "#ffffff"
_GIST = "Share of private examples that some attacker reconstructs, with its 95 % interval. Lower is better."
_FOOT = (
    "Means over the suite's conditions.  0 % is no proof: it is what these attackers reached.  ≥: attacks failed on "
    "some of the rest, so that more may leak.",
    "recognised: named out of a gallery, or identified among strangers; ≤: nobody exceeds it, by ε.  ε: of the "
    "released models; –: none proved.",
    "Strips: what came nearest to the same eight digits at the server (MNIST, untrained, B = 1); without information "
    "that is an average digit.",
)


def svg(standings: Sequence[Standing], strips: Mapping[str, bytes], title: str) -> bytes:
    """Draw the ranking of the defenses over a suite of conditions as an SVG picture, below `title`. A line for each
    defense shows leakage at each interception point, recognition, accuracy, ε, and an image.

    - `standings`: the ranked defenses, with their means over the suite.
    - `strips`: map from defense to its image as WebP."""
    points = columns(standings)
    heads = [(point, POINTS[point].heading if point in POINTS else "") for point in points]
    heads += [("recognised", "at the server"), ("accuracy", "change"), ("ε", "neighbours")]
    lines = figures(standings)
    wide, name = _strip_width(strips), round(_LETTER * max(len(line.name) for line in lines)) + 16
    width = _LEFT + 36 + name + _CELL * len(heads) + (wide + 24 if wide else 0) + _LEFT
    height = _TOP + _ROW * len(standings) + 30 + 16 * len(_FOOT)
    root = svg_root(width, height)
    _box(root, 0, 0, width, height, _PAPER)
    _text(root, _LEFT, 32, title, 20, weight="700")
    _text(root, _LEFT, 54, _GIST, _SIZE, _QUIET)
    first = _LEFT + 36 + name
    for n, (head, below) in enumerate(heads):
        _text(root, first + _CELL * n + _CELL // 2, 78, head, 13, _INK, anchor="middle", weight="600")
        _text(root, first + _CELL * n + _CELL // 2, 91, below, _SMALL, _QUIET, anchor="middle")
    if wide and VICTIMS_NAME in strips:
        _picture(root, first + _CELL * len(heads) + 24, _TOP - _TILE - 6, strips[VICTIMS_NAME])
    for number, (each, line) in enumerate(zip(standings, lines, strict=True)):
        top = _TOP + _ROW * number
        middle = top + _ROW // 2 + 5
        _box(root, _LEFT, top, width - 2 * _LEFT, 1, _LINE)
        _text(root, _LEFT + 22, middle, line.rank, _SIZE, _QUIET, anchor="end")
        _text(root, _LEFT + 36, middle, line.name, _SIZE, weight="700" if each.own else "500")
        for n, point in enumerate(points):
            if (place := each.points.get(point)) is not None:
                _box(root, first + _CELL * n + 3, top + 3, _CELL - 6, _ROW - 6, heat(place.leaked))
        change = f"{line.change} points" if line.change and not each.diverged else line.change
        cells = [
            *zip(line.points, line.intervals, strict=True),
            (line.recognised, line.ceiling or (line.chance and f"chance {line.chance}")),
            (line.accuracy, change),
            (line.epsilon, line.epsilon_of.removeprefix("one ")),
        ]
        for n, (words, below) in enumerate(cells):
            centre, under = first + _CELL * n + _CELL // 2, below if below != words else ""
            _text(root, centre, middle - (6 if under else 0), words, _SIZE, anchor="middle")
            _text(root, centre, middle + 8, under, _SMALL, _QUIET, anchor="middle")
        if each.defense in strips:
            _picture(root, first + _CELL * len(heads) + 24, top + (_ROW - _TILE) // 2, strips[each.defense])
    for n, words in enumerate(_FOOT):
        _text(root, _LEFT, height - 16 * (len(_FOOT) - n), words, 12, _QUIET)
    return written(root)


def png(content: bytes) -> bytes:
    """Convert the SVG `content` to a PNG at twice its size."""
    return svg_to_png(content.decode(), scale=2.0)


def pdf(content: bytes) -> bytes:
    """Convert the SVG `content` to a PDF page with the same size."""
    return svg_to_pdf(content.decode())


# Suffix → function that converts the SVG.
FORMS: dict[str, Callable[[bytes], bytes]] = {".svg": bytes, ".png": png, ".pdf": pdf}


def heat(leaked: float) -> str:
    """Return a colour for a share of leaked examples, `leaked` in [0, 1]: pale green at 0, pale yellow at 0.5, red at
    1."""
    low, middle, high = (218, 239, 224), (252, 239, 200), (236, 140, 120)
    start, end, way = (low, middle, 2 * leaked) if leaked < 0.5 else (middle, high, 2 * leaked - 1)
    return "#" + "".join(f"{round(a + (b - a) * way):02x}" for a, b in zip(start, end, strict=True))


def _strip_width(strips: Mapping[str, bytes]) -> int:
    sizes = [Image.open(BytesIO(content)).size for content in strips.values()]
    return max((round(_TILE * width / height) for width, height in sizes), default=0)


def _picture(root: Element, left: int, top: int, content: bytes) -> None:
    """Draw the WebP strip `content` as PNG at `left`, `top` below `root`."""
    image = Image.open(BytesIO(content)).convert("RGB")
    embed(root, image, left, top, (round(_TILE * image.width / image.height), _TILE))


def _box(root: Element, left: int, top: int, width: int, height: int, fill: str) -> None:
    place = {"x": str(left), "y": str(top), "width": str(width), "height": str(height)}
    SubElement(root, "rect", {**place, "fill": fill, "rx": "3" if height > 1 else "0"})


def _text(
    root: Element,
    left: int,
    baseline: int,
    words: str,
    size: int,
    fill: str = _INK,
    *,
    anchor: str = "start",
    weight: str = "400",
) -> None:
    if words:
        place = {"x": str(left), "y": str(baseline), "font-size": str(size), "fill": fill}
        SubElement(root, "text", {**place, "text-anchor": anchor, "font-weight": weight}).text = words
