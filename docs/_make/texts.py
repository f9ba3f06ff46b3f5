"""A table of attacks on texts: sentences word for word, certificates, tokens, CPU time."""

from collections.abc import Sequence
from statistics import fmean

from bench.kinds.texts import TEXT
from bench.leaderboard.attacks import attacks
from bench.leaderboard.forms.markdown import table
from bench.leaderboard.forms.numbers import formatted, share
from bench.record.names import distinct
from bench.record.schema import Record

_HEADS = (
    *("setting", "attack", "defense", "sentences", "word for word", "certified"),
    *("recall", "precision", "ROUGE-1", "ROUGE-2", "CPU s"),
)


def sentences(records: Sequence[Record]) -> str:
    """A row for each setting, attack and defense on texts; CPU seconds are those of a sentence. Empty without texts."""
    of_texts = {record.id: record for record in records if record.attack and record.attack.data == TEXT.name}
    rows = attacks(of_texts.values())
    names = {name: distinct(getattr(row, name) for row in rows) for name in ("title", "attack", "defense")}
    lines: list[Sequence[str]] = [_HEADS]
    for row in rows:
        its = [of_texts[each] for each in row.cells]
        readings = [reading for record in its if record.attack for reading in record.attack.readings]
        examples = [example for reading in readings for example in reading.examples]
        lines.append(
            [
                names["title"][row.title],
                names["attack"][row.attack],
                names["defense"][row.defense],
                str(len(examples)),
                share(fmean(example.tokens_right == 1 for example in examples)),
                share(fmean(reading.certificate or 0.0 for reading in readings)),
                share(fmean(example.token_recall or 0.0 for example in examples)),
                share(fmean(example.token_precision or 0.0 for example in examples)),
                share(fmean(example.rouge_1 or 0.0 for example in examples)),
                share(fmean(example.rouge_2 or 0.0 for example in examples)),
                formatted(sum(record.cost.cpu_seconds for record in its) / len(examples), ".2g"),
            ]
        )
    return table(lines) if rows else ""
