"""What makes one set of documents right both where the repository is read and in the site.

README is the site's first page, and the repository's other documents are pages beside those of docs/. Links between them
are rewritten from one layout to the other; code is coloured by a style sheet that Pygments writes.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter

ROOT = Path(__file__).parents[2]
DOCUMENTS = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
_LINK = re.compile(r"(\]\()([^)\s#:]+)")
_STYLE = """
.wy-nav-content { max-width: 1100px; }
.wy-table-responsive table td, .wy-table-responsive table th, .rst-content table td { white-space: normal; }
.rst-content table.docutils td p { margin: 0; }
.highlight pre { padding: 12px; line-height: 1.4; overflow-x: auto; }
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie outside of docs/, and the style sheets."""
    for document, page in DOCUMENTS.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    colours = HtmlFormatter(style="default").get_style_defs(".highlight")
    for name, style in (("highlight.css", colours), ("site.css", _STYLE)):
        files.append(File.generated(config, name, content=style))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from where files lie in the repository to where they lie in the site."""
    if page.file.src_uri in DOCUMENTS.values():
        return _LINK.sub(lambda link: link[1] + _in_site(link[2]), markdown)
    return _LINK.sub(lambda link: link[1] + re.sub(r"^\.\./", "", DOCUMENTS.get(link[2][3:], link[2])), markdown)


def _in_site(link: str) -> str:
    """A link of a document at the repository's top."""
    return DOCUMENTS.get(link, link.removeprefix("docs/"))
