"""`arpo-verl report` writes a run's overview as one HTML file that opens from disk and needs no network.

The file contains the page's scripts, styles and document. Its content security policy names each script and style by
its hash, so that even if a model's text became markup, it would not run.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from pathlib import Path
from typing import Any

from arpo_verl.errors import ImageError
from arpo_verl.lib.files import write_whole
from arpo_verl.lib.images import read_image
from arpo_verl.lib.untrusted import read_regular
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.run import Run
from arpo_verl.tools.viewer.documents import episodes_document, run_document
from arpo_verl.tools.viewer.overview.content import overview_document
from arpo_verl.tools.viewer.page import ASSETS, index_page

IMAGE_BYTES = 3 * 1024**2
"""Most bytes of all screenshots in the file; with everything else it has about 3.5 MB."""
_WIDTH, _TALLEST, _WEBP_QUALITY = 300, 1200, 70
_SCRIPT = re.compile(r'<script (?:defer )?src="assets/([\w./]+)"></script>')
_STYLE = re.compile(r'<link rel="stylesheet" href="assets/([\w./]+)">')


def write_report(run: Run, file: Path) -> int:
    """Write the report of a run, finished or not.

    Returns:
        The file's size in bytes.
    """
    snapshot = run.snapshot()
    overview = overview_document(run, snapshot)
    documents = {
        "api/run": run_document(run, snapshot, live=False),
        "api/episodes": episodes_document([]),
        "api/overview": overview,
    }
    content = report_page(documents, _pictures(run, overview))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, content, sync=False)  # replaces a link instead of following it
    return len(content)


def report_page(documents: dict[str, Any], pictures: dict[str, Any]) -> bytes:
    """Return the page with its documents and pictures in it."""
    page = index_page("report")
    sources: dict[str, list[str]] = {"script": [], "style": []}

    def inlined(tag: str, text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
        sources[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    # The scripts are at the end of the body, since inline scripts cannot be deferred.
    scripts = [(ASSETS / name).read_text(encoding="utf-8") for name in _SCRIPT.findall(page)]
    page = _SCRIPT.sub("", re.sub(r'<link rel="icon"[^>]*>', "", page))
    page = _STYLE.sub(lambda match: inlined("style", (ASSETS / match[1]).read_text(encoding="utf-8")), page)
    data = dump_json({"documents": documents, "pictures": pictures}).replace(b"<", b"\\u003c").decode("ascii")
    body = f'<script type="application/json" id="report">{data}</script>' + "".join(
        inlined("script", text) for text in scripts
    )
    policy = (
        f"default-src 'none'; script-src {' '.join(sources['script'])}; style-src {' '.join(sources['style'])}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{meta}', 1)
    before, _, after = page.rpartition("</body>")
    return f"{before}{body}</body>{after}".encode()


def _pictures(run: Run, document: dict[str, Any]) -> dict[str, Any]:
    """Return the samples' small screenshots by the page's path: address, and the screen's width and height."""
    pictures, left = {}, IMAGE_BYTES
    for sample in (*document["samples"]["failures"], *document["samples"]["first_successes"]):
        for name in sample["folder_files"]:
            picture = _picture(run, sample["id"], name)
            if picture is not None and len(picture[0]) <= left:
                left -= len(picture[0])
                pictures[f"shots/{sample['id']}/{name}"] = picture
    return pictures


def _picture(run: Run, episode_id: str, name: str) -> tuple[str, int, int] | None:
    try:
        image = read_image(read_regular(run.folder(episode_id) / name))
    except (KeyError, OSError, ImageError):
        return None
    height = round(_WIDTH * image.height / image.width)
    if not 1 <= height <= _TALLEST:  # no screen's shape
        return None
    stream = io.BytesIO()
    image.resize((_WIDTH, height)).save(stream, "WEBP", quality=_WEBP_QUALITY)
    encoded = base64.b64encode(stream.getvalue()).decode("ascii")
    return f"data:image/webp;base64,{encoded}", image.width, image.height
