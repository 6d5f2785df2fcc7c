"""What makes one set of documents right both where the repository is read and in the site.

README is the site's first page, and the repository's other documents are pages beside those of docs/, the notebook
too. Links between them are rewritten from one layout to the other. Tables of metrics are made from
`arpo_verl/records/metric_names.py`.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from arpo_verl.records import metric_names

logger = logging.getLogger("mkdocs.hooks.arpo_verl")

ROOT = Path(__file__).parents[2]
DOCUMENTS = {"README.md": "index.md"} | {page: page for page in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")}
DOCUMENTS["docs/python_door.ipynb"] = "python_door.md"
_DOCUMENT_OF = {page: document for document, page in DOCUMENTS.items()}
_LINK = re.compile(r"(\]\()([^)\s#:]+)")
_METRICS = re.compile(r"^<!-- metrics: (\w+) -->$", re.MULTILINE)
_FOREIGN = re.compile(
    r"<(?:script|link|img|source|iframe|video|audio|use)\b[^>]*?\b(?:src|href|srcset)=[\"']?(?:https?:)?//[^\"'\s>]+"
    r"|(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')\s]+"
)
_STYLE = """
.md-grid { max-width: 76rem; }
.md-typeset__table { display: block; overflow-x: auto; }
.md-typeset table:not([class]) td code { word-break: break-word; }
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that are outside of docs/, the notebook, and the style sheet."""
    for document, page in DOCUMENTS.items():
        text = (ROOT / document).read_text(encoding="utf-8")
        if document.endswith(".ipynb"):
            text = "\n\n".join(_notebook_parts(json.loads(text)["cells"]))
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "site.css", content=_STYLE))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables of metrics, and rewrite links from the repository's layout to the site's."""
    markdown = _METRICS.sub(lambda table: _metric_table(table[1]), markdown)
    here = page.file.src_uri
    document = _DOCUMENT_OF.get(here, f"docs/{here}")
    return _LINK.sub(lambda link: link[1] + _in_site(link[2], document, here), markdown)


def _in_site(link: str, document: str, page: str) -> str:
    """A link of a document of the repository, as its page in the site has to say it."""
    if "//" in link:
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(document), link))
    place = DOCUMENTS.get(target, target.removeprefix("docs/"))
    return posixpath.relpath(place, posixpath.dirname(page) or ".")


def _notebook_parts(cells: list[dict[str, Any]]) -> Iterator[str]:
    """The cells and what they gave, as Markdown."""
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        for output in cell["outputs"]:
            data = output.get("data", {})
            if image := data.get("image/png"):
                yield f"![What the cell above shows](data:image/png;base64,{image.strip()})"
            else:
                yield "```text\n" + "".join(output.get("text") or data["text/plain"]).rstrip() + "\n```"


def _metric_table(name: str) -> str:
    """One of the tables of `metric_names`."""
    rows = (f"| `{metric}` | {unit} | {text} |" for metric, (unit, text) in getattr(metric_names, name).items())
    return "\n".join(["| metric | unit | meaning |", "|---|---|---|", *rows])


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of what a reader's browser would fetch from another host. Links to follow are none of it."""
    for path in Path(config.site_dir).rglob("*"):
        if path.suffix in (".html", ".css"):
            for match in _FOREIGN.finditer(path.read_text(encoding="utf-8")):
                logger.warning("%s needs another host to be read: %s", path, match[0])
