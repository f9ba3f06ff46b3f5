"""Write the board as LaTeX tables for the packages booktabs and amssymb."""

from collections.abc import Iterable, Sequence

from bench.leaderboard.board import Row
from bench.leaderboard.forms.columns import columns, lines
from bench.leaderboard.forms.standings import figures, heads
from bench.leaderboard.standings import Standing
from bench.record.groups import grouped

_LEFT_OUT = ("flags",)  # what a paper has no column for
_SPECIAL = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "×": r"$\times$",
        "−": r"$-$",
        "–": "--",
        "◆": r"$\blacklozenge$",
        "✗": r"$\times$",
        "·": r"$\cdot$",
        "▸": r"$\triangleright$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "σ": r"$\sigma$",
        "α": r"$\alpha$",
        "η": r"$\eta$",
        "∞": r"$\infty$",
    }
)


def board(rows: Sequence[Row], standings: Sequence[Standing] = ()) -> str:
    """Return LaTeX code: a `table` with the `standings` (each defense's means over a suite of conditions) if given,
    then a `table` for each condition of the board `rows`. Figures have 95 % intervals; ≥ marks lower bounds."""
    parts = [_standings(standings)] if standings else []
    for title, group in grouped(lines(rows), lambda line: line.row.title).items():
        shown = [
            column
            for column in columns(line.row for line in group)
            if column.terminal is not None and column.name not in _LEFT_OUT
        ]
        sides = "".join("l" if column.kind == "text" else "r" for column in shown)
        head = [column.spoken for column in shown]
        parts.append(_table(title, sides, head, ([column.text(line) for column in shown] for line in group)))
    return "% bench leaderboard --latex; \\usepackage{booktabs,amssymb}\n" + "\n\n".join(parts) + "\n"


def _standings(standings: Sequence[Standing]) -> str:
    head = heads(standings)
    body = [(*line.cells, line.epsilon) for line in figures(standings)]
    return _table("Standings over the conditions of the suite", f"rl{'r' * (len(head) - 2)}", head, body)


def _table(caption: str, sides: str, head: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escaped(caption)}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            _line(head),
            r"\midrule",
            *map(_line, body),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def escaped(text: str) -> str:
    """Escape `text` for LaTeX and join its lines by spaces."""
    return " ".join(text.split()).translate(_SPECIAL)


def _line(cells: Iterable[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"
