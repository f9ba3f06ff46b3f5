"""The site's build: pages from the root, generated pages, notebooks; links between files become links of the site."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent
FROM_ROOT = ("ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "RESULTS.md", "SECURITY.md")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
COMMENT = re.compile(r"\A<!--.*?-->\s*", re.S)

generated: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the generated pages, and list them in the navigation under Results."""
    generated.update(_generated(ROOT / config.extra["generated"]))
    results = sorted(name for name in generated if name.startswith("results/"))
    by_hand = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "results").glob("*.md"))
    survey = [name for name in ("DEFENSES.md", "CLAIMS.md") if name in generated or (DOCS / name).is_file()]
    papers = sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "papers").glob("*.md"))
    listed = ["RESULTS.md", *survey, {"By paper": papers}, {"By preset": sorted({*results, *by_hand})}]
    for section in config.nav or []:
        if "Results" in section:
            section["Results"] = listed
    return config


def _generated(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise PluginError(f"no generated pages in {folder}: run `tox -e docs`")
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in sorted(folder.rglob("*.*"))}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not stand in docs/."""
    for name in FROM_ROOT:
        if name not in generated:
            _add(files, config, name, (ROOT / name).read_text("utf-8"))
    for name, text in generated.items():
        _add(files, config, name, text)
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        _add(files, config, f"notebooks/{path.stem}.md", notebook(json.loads(path.read_text("utf-8"))))
    return files


def _add(files: Files, config: MkDocsConfig, name: str, text: str) -> None:
    if (old := files.get_file_from_path(name)) is not None:
        files.remove(old)
    files.append(File.generated(config, name, content=COMMENT.sub("", text)))


def notebook(content: dict[str, Any]) -> str:
    """A notebook as Markdown: prose, code, and the outputs that the file holds."""
    return "\n\n".join(_cell(cell) for cell in content["cells"])


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *(_output(output) for output in cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]).rstrip() + "\n```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="the output of the cell above" src="data:image/png;base64,{data["image/png"].strip()}">'
    return "```text\n" + "".join(data["text/plain"]) + "\n```"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site; a link to a file outside the site becomes its path, which must exist."""
    return LINK.sub(_relinked(page, files), markdown)


def _relinked(page: Page, files: Files) -> Callable[[re.Match[str]], str]:
    name = page.file.src_uri
    base = ROOT if name in FROM_ROOT else (DOCS / name).parent

    def relink(match: re.Match[str]) -> str:
        target = (base / match["path"]).resolve()
        inside = _name(target)
        if inside and files.get_file_from_path(inside):
            up = "../" * name.count("/")
            return f"[{match['text']}]({up}{inside}{match['anchor'] or ''})"
        if target.exists() and target.is_relative_to(ROOT):
            return f"`{target.relative_to(ROOT)}`" if match["text"] == match["path"] else match["text"]
        raise PluginError(f"{name}: no page and no file {match['path']}")

    return relink


def _name(target: Path) -> str:
    if target.is_relative_to(DOCS):
        name = target.relative_to(DOCS).as_posix()
        return re.sub(r"\.ipynb$", ".md", name)
    return target.relative_to(ROOT).as_posix() if target.is_relative_to(ROOT) else ""
