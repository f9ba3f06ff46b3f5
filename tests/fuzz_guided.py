"""The readers of `tests/fuzzing.py` under a coverage-guided fuzzer: `python -P tests/fuzz_guided.py KIND [-runs=N]`.

Needs atheris, which no other test does.  Options are libFuzzer's; a finding ends it with a traceback and the file
that made it.
"""

import resource
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.append(str(Path(__file__).parent.parent))
with atheris.instrument_imports(include=["bench"]):
    from tests import fuzzing

MEMORY = 6 << 30  # bytes of address space beyond what is in use: what nothing may pass


def main() -> None:
    kind, folder = fuzzing.KINDS[sys.argv[1]], Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus = folder.with_name(f"{folder.name}-corpus")
    corpus.mkdir()
    (corpus / "valid").write_bytes(kind.valid())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))

    def once(content: bytes) -> None:
        shutil.rmtree(folder / "inside", ignore_errors=True)
        fuzzing.attempt(kind, content, folder)

    atheris.Setup([sys.argv[0], *sys.argv[2:], "-timeout=20", "-rss_limit_mb=0", str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
