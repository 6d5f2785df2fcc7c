"""Attacks by what a policy leaves on its desktop, through the real path: desktop, relay, sandbox, verdict.

In the first part the evaluator is as recipes have it, and the attack wants code to run, or a score that it has not
earned. In the second the recipe allows a metric to import what the policy wrote, so that the attack begins with code in
the sandbox, and wants out. None reaches the host, another desktop or another verdict.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import signal
import socket
import sqlite3
import struct
import tarfile
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from PIL import Image, ImageOps

pytest.importorskip("desktop_env")

from support import made_files as make_file  # noqa: E402
from support.attacked_metrics import DASH  # noqa: E402
from support.desktop_harness import eventually  # noqa: E402
from support.hostile_guest import OUTPUT, SIZE, HostileGuest, evaluated_by, file_at, printed, rule  # noqa: E402

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.embedded import cgroups  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.desktops.osworld.task_files import DownloadStore, downloads_of  # noqa: E402
from arpo_verl.desktops.osworld.verdict.sandbox_host import this_process_host  # noqa: E402
from arpo_verl.errors import DesktopError, DesktopLostError, EvaluatorError  # noqa: E402
from arpo_verl.types import Task  # noqa: E402

HONEST = evaluated_by("exact_match", OUTPUT, rule(expected="yes"))
OFFERED = {controller for parent in cgroups.parents() for controller in parent.controllers}
BY_TEST_SUITE = evaluated_by("check_python_file_by_test_suite", file_at("/a.py"), file_at("/tests.py"))


class Desktop(OSWorldEnvironment):
    def __init__(self, guest: HostileGuest, **options: Any):
        super().__init__(EnvironmentConfig(screen_size=SIZE, action_pause_s=0, **options), "attacked")
        self.guest = guest

    def _make_provider(self) -> Any:
        return self.guest

    def score_of(self, task: Task) -> float:
        """The score, or -1 where there is no verdict."""
        self.reset(task)
        try:
            return self.evaluate().score
        except DesktopError as error:
            self.guest.reports.append({"error": f"{type(error).__name__}: {error}"})
            return -1.0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Desktop]]:
    made: list[Desktop] = []

    def build(**options: Any) -> Desktop:
        made.append(Desktop(HostileGuest(), cache_dir=str(tmp_path / "downloads"), **options))
        return made[-1]

    yield build
    for desktop in made:
        desktop.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """What an attack must neither read nor touch, and is told of: a file, a variable, a server, another desktop."""
    secret = uuid.uuid4().hex
    # Open to everybody, in case that permissions are all that stands before it.
    folder = Path("/var/tmp") / f"arpo_verl-canary-{secret[:8]}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "file").write_text(secret)
    monkeypatch.setenv("ARPO_CANARY", secret)
    other = HostileGuest()
    other.start()
    assert other.server is not None
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        server.setblocking(False)
        abstract.bind(f"\0{secret}")
        abstract.listen()
        abstract.setblocking(False)
        yield SimpleNamespace(
            secret=secret, folder=str(folder), port=server.getsockname()[1], other=other.server.server_port
        )
        for listener in (server, abstract):
            with pytest.raises(BlockingIOError):
                listener.accept()
    other.stop()
    assert not other.requests
    assert (folder / "file").read_text() == secret and os.listdir(folder) == ["file"]
    (folder / "file").unlink()
    folder.rmdir()


# --- Data ------------------------------------------------------------------------------------------------------------

FAVOURITES = evaluated_by("check_gnome_favorite_apps", OUTPUT, rule(expected=["a", "b"]))
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {folder}/pwned') or ['a', 'b']",
        "['a', 'b'] if open('{folder}/file').read() else 0",
        "type('L', (list,), {{'__len__': lambda s: 2, '__iter__': lambda s: iter('ab')}})()",
        "().__class__.__base__.__subclasses__()",
        "9**9**9**9",
        "['a', 'b'] * 1000000000",
        "[*'ab']",
        DEEP,
        "(lambda: ['a', 'b'])()",
        "'" + "x" * 1_000_000 + "'",
        "\x00['a', 'b']",
    ],
    ids=["system", "open", "class", "subclasses", "power", "repeat", "star", "deep", "lambda", "long", "null"],
)
def test_what_a_command_prints_is_no_code(make, host, text):
    desktop = make()
    printed_text = text if "{" not in text else text.format(folder=host.folder)
    desktop.guest.replies["/execute"] = lambda _: printed(printed_text)
    assert desktop.score_of(FAVOURITES) == 0.0
    desktop.guest.replies["/execute"] = lambda _: printed("['b', 'a']\n")
    assert desktop.score_of(FAVOURITES) == 1.0


def test_what_a_policy_wrote_is_not_imported_unless_the_recipe_allows_it(make, host):
    desktop = make()
    desktop.guest.files = {"/a.py": b"", "/tests.py": f"open('{host.folder}/pwned', 'w')\ntest = lambda: 1".encode()}
    desktop.reset(BY_TEST_SUITE)
    with pytest.raises(EvaluatorError, match="evaluator_runs_policy_code"):
        desktop.evaluate()


def test_a_module_beside_the_evaluated_file_is_not_imported_in_the_place_of_a_library(make, host):
    """A folder with the policy's files is on no path, and is nobody's working folder."""
    desktop = make()
    shadow = f"open('{host.folder}/pwned', 'w')".encode()
    names = ["json.py", "csv.py", "sitecustomize.py", "lxml.py"]
    desktop.guest.files = {f"/{name}": shadow for name in names} | {"/csv.csv": b"a,b"}
    files = {"type": "vm_file", "path": [f"/{n}" for n in names] + ["/csv.csv"], "dest": [*names, "csv.csv"]}
    task = evaluated_by("compare_csv", {**files, "multi": True, "gives": [4]}, file_at("/json.py"))
    assert desktop.score_of(task) == 0.0


def packed(entries: dict[str, bytes]) -> bytes:
    return make_file.packed(*entries.items())


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


GOLD_BOOK = packed({"a.html": b"<html><body>the solution</body></html>"})
GOLD_TAR = tarred((tarfile.TarInfo("a.txt"), b"the solution"))
BOOK = evaluated_by("compare_epub", file_at("/mine.epub"), file_at("/gold.epub"))
TAR = evaluated_by("compare_archive", file_at("/mine.tar.gz"), file_at("/gold.tar.gz"), options={"file_type": "text"})
ZIPS = evaluated_by("compare_zip_files", file_at("/mine.zip"), file_at("/gold.zip"))


def test_a_book_of_the_first_chapter_alone_is_none_and_the_record_says_why(make, host):
    desktop = make()
    chapters = {f"{name}.html": f"<html><body>{name}</body></html>".encode() for name in ("one", "two")}
    desktop.guest.files = {"/mine.epub": packed({"one.html": chapters["one.html"]}), "/gold.epub": packed(chapters)}
    desktop.reset(BOOK)
    verdict = desktop.evaluate()
    assert verdict.score == 0.0
    assert verdict.metrics[0].returned == "0.0, refused: it has 1 parts, the expected file 2"


def png(width: int, height: int) -> bytes:
    """All black, by one byte in a thousand."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(1)
    row = bytes(1 + width)
    rows = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


LOCALE = (
    b'<oor:items xmlns:oor="http://openoffice.org/2001/registry"><item oor:path="/org.openoffice.Setup/L10N">'
    b'<prop oor:name="ooSetupSystemLocale"><value>%s</value></prop></item></oor:items>'
)
LAUGHS = b'<!DOCTYPE x [<!ENTITY a "%s">%s]>' % (
    b"ha" * 1000,
    b"".join(b'<!ENTITY %c "%s">' % (c, b"&%c;" % (c - 1) * 100) for c in range(ord("b"), ord("h"))),
)


def database(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(sqlite3.connect(f"{folder}/db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        return Path(folder, "db").read_bytes()


def slides(target: str, **entries: bytes) -> bytes:
    """A presentation whose first slide has the picture `target` behind it."""
    relations = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
        f'<Relationship Id="r1" Type="x/image" Target="{target}"/></Relationships>'
    )
    office = "http://schemas.openxmlformats.org"
    slide = (
        f'<p:sld xmlns:p="{office}/presentationml/2006/main" xmlns:a="{office}/drawingml/2006/main" '
        f'xmlns:r="{office}/officeDocument/2006/relationships"><p:bgPr><a:blip r:embed="r1"/></p:bgPr></p:sld>'
    )
    parts = {"ppt/slides/slide1.xml": slide, "ppt/slides/_rels/slide1.xml.rels": relations}
    return packed({name: text.encode() for name, text in parts.items()} | entries)


SHADES = make_file.picture(5)
INVERTED = make_file.encoded(ImageOps.invert(Image.open(io.BytesIO(SHADES))))


TABS = evaluated_by("check_tabstops", file_at("/mine.docx"), file_at("/gold.docx"))
TAB_STOP = make_file.docx(make_file.tab_stop)
FILMS = evaluated_by("compare_videos", file_at("/mine.mp4"), file_at("/gold.avi"))
IMAGES = evaluated_by("compare_images", file_at("/mine.png"), file_at("/gold.png"))
BEHIND = {"type": "background_image_in_slide", "ppt_file_path": "/a.pptx", "slide_index": 0, "dest": "mine.png"}
IN_SLIDE = evaluated_by("compare_images", BEHIND, file_at("/gold.png"))
TWO_FILES = {"type": "vm_file", "path": ["/x.xcu", "/key.txt"], "dest": ["x.xcu", "key.txt"], "multi": True}
DOCUMENT = evaluated_by("check_libre_locale", TWO_FILES, rule(locale_set=["zh-CN"]))
QUERY = evaluated_by("run_sqlite3", file_at("/x.db"), rule(type="sql", sql="SELECT n FROM t"))
TABLE = ("CREATE TABLE t (n)", "INSERT INTO t VALUES (1)")
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file pop showpage\n%%EOF\n"
MANY = [(tarfile.TarInfo(f"{number}/a/b/c/d/e"), b"") for number in range(15000)]
FILM = make_file.film(1, 2)
# Each task: where the policy leaves a file, the right one, and other files that are there. A database, a document and a
# decoder's bounds may also give no verdict.
RIGHT = {
    "epub": (BOOK, "/mine.epub", GOLD_BOOK, {"/gold.epub": GOLD_BOOK}, False),
    "tar": (TAR, "/mine.tar.gz", GOLD_TAR, {"/gold.tar.gz": GOLD_TAR}, False),
    "zip": (ZIPS, "/mine.zip", packed({"a": b""}), {"/gold.zip": packed({"a": b""})}, False),
    "film": (FILMS, "/mine.mp4", FILM, {"/gold.avi": FILM}, False),
    "slide": (IN_SLIDE, "/a.pptx", slides("../media/m", **{"ppt/media/m": SHADES}), {"/gold.png": SHADES}, False),
    "tabs": (TABS, "/mine.docx", TAB_STOP, {"/gold.docx": TAB_STOP}, False),
    "shades": (IMAGES, "/mine.png", SHADES, {"/gold.png": SHADES}, False),
    "image": (IMAGES, "/mine.png", png(9, 9), {"/gold.png": png(9, 9)}, True),
    "document": (DOCUMENT, "/x.xcu", LOCALE % b"zh-CN", {"/key.txt": b"zh-CN"}, True),
    "database": (QUERY, "/x.db", database(*TABLE), {}, True),
}
LEFT = {
    "epub up": packed({"../gold.epub.dir/a.html": b"<p>mine</p>"}),
    "epub absolute": packed({"/scratch/cache/t/gold.epub.dir/a.html": b"<p>mine</p>"}),
    "epub backslash": packed({"x/..\\..\\gold.epub.dir\\a.html": b"<p>mine</p>"}),
    "tar symlink": tarred(link("a.txt", "../gold_gold/a.txt")),
    "tar absolute symlink": tarred(link("a.txt", "/scratch/cache/t/gold.tar_gold/a.txt")),
    "tar hardlink": tarred(link("a.txt", "../gold.tar_gold/a.txt", tarfile.LNKTYPE)),
    "tar fifo": tarred(link("a.txt", "", tarfile.FIFOTYPE)),
    "tar up": tarred((tarfile.TarInfo("../gold.tar_gold/a.txt"), b"mine")),
    "tar through link": tarred(link("d", ".."), (tarfile.TarInfo("d/gold.tar_gold/a.txt"), b"mine")),
    "tar no archive": b"no archive",
    "tar of too many folders": lambda: tarred(*MANY),
    "zip bomb": lambda: packed({f"{n}": bytes(100 << 20) for n in range(11)}),
    "film concat": b"ffconcat version 1.0\nfile gold.avi\n",
    "film playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\ngold.avi\n#EXT-X-ENDLIST\n",
    "film playlist of host": b"#EXTM3U\n#EXTINF:9,\nhttp://127.0.0.1:{port}/film\n",
    "film sdp": b"v=0\nm=video 5000 RTP/AVP 96\nc=IN IP4 127.0.0.1\n",
    "film dash": DASH.format(gold="gold.avi").encode(),
    "film empty": b"",
    "film torn": b"RIFF\x10\x00\x00\x00AVI nothing",
    "slide in the place of the expected picture": slides("../../gold.png", **{"gold.png": INVERTED}),
    "tabs far away": make_file.docx(lambda document: make_file.tab_stop(document, at=20_000_000)),
    "shades inverted": INVERTED,
    "image bomb": lambda: png(20_000, 20_000),
    "image postscript": POSTSCRIPT,
    "document file": b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///scratch/cache/t/key.txt">]>' + LOCALE % b"&e;",
    "document host": b'<!DOCTYPE x [<!ENTITY e SYSTEM "http://127.0.0.1:{port}/">]>' + LOCALE % b"&e;",
    "document dtd": b'<!DOCTYPE x SYSTEM "http://127.0.0.1:{port}/x.dtd">' + LOCALE % b"none",
    "document laughs": LAUGHS + LOCALE % b"&g;",
    "document deep": b"<a>" * 300_000,
    "database extension": database("CREATE VIEW t AS SELECT load_extension('/scratch/cache/t/x.so') AS n"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_file_is_no_other_file_and_no_code(make, host, name):
    task, place, right, others, may_be_no_verdict = RIGHT[name.partition(" ")[0]]
    left = LEFT[name]() if callable(LEFT[name]) else LEFT[name].replace(b"{port}", str(host.port).encode())
    desktop = make()
    desktop.guest.files = {place: left, **others}
    score = desktop.score_of(task)
    assert score == 0.0 or (may_be_no_verdict and score < 0)
    desktop.guest.files[place] = right
    assert desktop.score_of(task) == 1.0


def test_what_is_read_from_a_desktop_does_not_replace_the_file_that_it_is_compared_with(make, tmp_path):
    gold = {"type": "cloud_file", "path": "https://example.org/a.txt", "dest": "a.txt"}
    task, desktop = evaluated_by("diff_text_file", file_at("/a.txt"), gold), make()
    kept = DownloadStore(tmp_path / "downloads").path("t", *downloads_of(task.spec))
    kept.parent.mkdir(parents=True)
    kept.write_text("the right one")
    desktop.guest.files = {"/a.txt": b"mine"}
    assert desktop.score_of(task) == 0.0
    desktop.guest.files = {"/a.txt": b"the right one"}
    assert desktop.score_of(task) == 1.0


def test_a_pdf_names_no_file_of_the_sandboxs(make, host):
    """Older releases of pdfminer unpickle what a document's /Encoding leads to."""
    font = b"/Type/Font/Subtype/Type0/BaseFont/X/Encoding/..#2f..#2fcache#2ft#2fevil/DescendantFonts[4 0 R]"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 6 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDSystemInfo<</Registry(A)/Ordering(B)/Supplement 0>>>>",
        b"<<" + font + b">>",
        b"<</Length 26>>stream\nBT /F 9 Tf <0041> Tj ET   \nendstream",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    pdf = body + b"xref\n0 7\n0000000000 65535 f \n" + table
    pdf += b"trailer<</Size 7/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % len(body)
    payload = gzip.compress(b"cos\nsystem\n(S'touch %s/pwned'\ntR." % host.folder.encode())
    desktop = make()
    names = ["x.pdf", "evil.pickle.gz"]
    files = {"type": "vm_file", "path": [f"/{n}" for n in names], "dest": names, "multi": True}
    desktop.guest.files = {"/x.pdf": pdf, "/evil.pickle.gz": payload, "/gold.json": b'{"key": "not there"}'}
    assert desktop.score_of(evaluated_by("is_gold_text_included_in_pdf", files, file_at("/gold.json"))) <= 0.0


# --- Replies ---------------------------------------------------------------------------------------------------------

TEXTS = evaluated_by("compare_text_file", file_at("/mine"), file_at("/gold"))
BOMB = gzip.compress(bytes(300 << 20), 9)


@pytest.mark.parametrize(
    "reply",
    [
        (200, {"Content-Length": str(1 << 40)}, b"x"),
        (200, {"Content-Length": "-1"}, b"x"),
        (200, {"Content-Encoding": "gzip"}, BOMB),
        (200, {"Transfer-Encoding": "chunked", "Content-Length": "9"}, b"ffffffffffffffff\r\nx"),
        (307, {"Location": "http://127.0.0.1:{port}/"}, b""),
        (302, {"Location": "http://127.0.0.1:{other}/screenshot"}, b""),
        (302, {"Location": "file:///etc/passwd"}, b""),
        None,
    ],
    ids=["long", "negative", "gzip-bomb", "chunk", "to-host", "to-other-desktop", "to-file", "hang-up"],
)
def test_a_reply_is_bounded_and_leads_nowhere_else(make, host, reply):
    desktop = make()
    if reply is not None:
        names = {"port": host.port, "other": host.other}
        headers = {k: v.format(**names) if k == "Location" else v for k, v in reply[1].items()}
        reply = (reply[0], headers, reply[2])
    desktop.guest.replies["/file"] = lambda body: (200, {}, b"y") if b"gold" in body else reply
    assert desktop.score_of(TEXTS) <= 0.0


@pytest.mark.parametrize("text", [DEEP, "1e999", '{"output": NaN}', '{"output": ' + "9" * 10_000 + "}", "[1]"])
def test_json_of_the_guests_breaks_no_evaluation_but_its_own(make, host, text):
    desktop = make()
    desktop.guest.replies["/execute"] = lambda _: (200, {}, text.encode())
    assert desktop.score_of(HONEST) <= 0.0
    desktop.guest.replies["/execute"] = lambda _: printed("yes")
    assert desktop.score_of(HONEST) == 1.0


# --- Code in the sandbox ---------------------------------------------------------------------------------------------

PRELUDE = """
import ctypes, errno, json, os, signal, socket, subprocess, sys, time, urllib.request
from pathlib import Path
HOST = json.loads({host!r})
def report(**found):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
    opener.open("http://127.0.0.1:5000/report", json.dumps(found).encode(), timeout=20).close()
def refused(function, *args):
    try:
        value = function(*args)
    except BaseException as error:
        return f"{{type(error).__name__}} {{error}}"
    return None if not isinstance(value, int) or value >= 0 else "refused"
def test():
    {body}
    return 1.0
"""


class Inside:
    """Runs Python in the sandbox, as a metric that imports it, and gives what it reported."""

    def __init__(self, make: Callable[..., Desktop], host: SimpleNamespace):
        self.make, self.host = make, host
        self.desktop = make(evaluator_runs_policy_code=True)

    def __call__(self, body: str, desktop: Desktop | None = None) -> dict[str, Any]:
        desktop = desktop or self.desktop
        lines = "\n    ".join(body.strip().splitlines())
        code = PRELUDE.format(host=json.dumps(vars(self.host)), body=lines)
        desktop.guest.reports.clear()
        desktop.guest.files = {"/a.py": b"", "/tests.py": code.encode()}
        desktop.score = desktop.score_of(BY_TEST_SUITE)
        assert len(desktop.guest.reports) == 1, desktop.guest.reports
        return desktop.guest.reports[0]

    def is_well(self) -> bool:
        """Whether the next evaluation is as ever."""
        self.desktop.guest.replies["/execute"] = lambda _: printed("yes")
        good = self.desktop.score_of(HONEST)
        self.desktop.guest.replies["/execute"] = lambda _: printed("no")
        return (good, self.desktop.score_of(HONEST)) == (1.0, 0.0)


@pytest.fixture
def inside(make, host) -> Inside:
    return Inside(make, host)


def test_files_of_the_host_are_not_there(inside):
    found = inside("""
seen = {}
for path in (HOST["folder"] + "/file", "/etc/shadow", "/etc/hostname", "/root/.bashrc", "/proc/1/root/etc/shadow",
             "/proc/self/root/root/.ssh", "/sys/kernel", "/run", "/var/lib/dpkg/status", "/boot", "/home", "/mnt"):
    seen[path] = refused(os.stat, path)
tasks = next(Path(p) for p in sys.path if (Path(p) / "arpo_verl").is_dir()) / "arpo_verl" / "tasks"
report(seen=seen, tasks=os.listdir(tasks))
""")
    assert all(found["seen"].values()), found
    assert found["tasks"] == []


def test_nothing_of_the_host_can_be_written(inside):
    found = inside("""
report(**{path: refused(open, path + "/pwned", "w") for path in
          ("/", "/usr", "/etc", "/opt", "/dev", "/proc", "/var/tmp", HOST["folder"], os.path.dirname(os.__file__),
           *[p for p in sys.path if os.path.isdir(p) and not p.startswith("/scratch/")])})
""")
    assert all(found.values()), found


def test_the_environment_is_set_anew(inside):
    found = inside("report(env=dict(os.environ), argv=sys.argv, command=open('/proc/1/cmdline').read())")
    assert inside.host.secret not in json.dumps(found)
    assert not set(found["env"]) & {"ARPO_CANARY", "PYTHONPATH", "USER", "SSH_AUTH_SOCK"}


def test_a_sandbox_has_no_privilege_and_gets_none(inside):
    found = inside("""
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
libc = ctypes.CDLL(None, use_errno=True)
names = ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp")
report(ids=[os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()],
       status={name: status[name].strip() for name in names},
       calls={name: getattr(libc, name)(*args) for name, args in dict(
           setuid=(0,), unshare=(0x10000000,), setns=(0, 0), mount=(b"none", b"/tmp", b"tmpfs", 0, None),
           umount2=(b"/proc", 2), chroot=(b"/tmp",), pivot_root=(b"/", b"/")).items() if hasattr(libc, name)},
       new_user=subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode,
       su=subprocess.run(["su", "-c", "true"], capture_output=True, stdin=subprocess.DEVNULL).returncode)
""")
    status = found["status"]
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert found["new_user"] != 0 and found["su"] != 0
    if os.geteuid() == 0:
        assert set(found["ids"]).isdisjoint({0, 1000, 65534}) and set(found["calls"].values()) == {-1}


def test_no_host_no_other_desktop_and_no_internet_can_be_reached(inside):
    found = inside("""
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as s:
        s.settimeout(2)
        s.connect(address)
        s.send(b"x")
        return 0
places = [("127.0.0.1", HOST["port"]), ("127.0.0.1", HOST["other"]), ("127.0.0.1", 3128), ("127.0.0.1", 6379),
          ("127.0.0.1", 8265), ("10.0.0.1", 80), ("169.254.169.254", 80), ("1.1.1.1", 443)]
report(tcp=[refused(connect, socket.AF_INET, place) for place in places],
       udp=refused(connect, socket.AF_INET, ("1.1.1.1", 53), socket.SOCK_DGRAM),
       abstract=refused(connect, socket.AF_UNIX, chr(0) + HOST["secret"]),
       v6=refused(connect, socket.AF_INET6, ("2606:4700::1111", 443)),
       netlink=refused(socket.socket, 16, socket.SOCK_RAW, 4), packet=refused(socket.socket, 17, socket.SOCK_RAW, 3),
       interfaces=[name for _, name in socket.if_nameindex()])
""")
    assert all(found["tcp"]), found
    assert all(found[name] for name in ("udp", "abstract", "v6", "netlink", "packet")), found
    assert set(found["interfaces"]) - {"lo"} <= {"tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0"}


def test_the_recipes_hosts_are_reached_by_name_alone_and_by_https(make, host):
    inside = Inside(make, host)
    desktop = make(evaluator_runs_policy_code=True, evaluator_hosts=["allowed.example"])
    found = inside(
        """
def ask(line):
    with socket.create_connection(("127.0.0.1", 3128), 5) as s:
        s.sendall(line.encode() + b"\\r\\n\\r\\n")
        return s.recv(12).decode()
report(**{line: ask(line) for line in (
    f"CONNECT 127.0.0.1:{HOST['port']} HTTP/1.1", "CONNECT 127.0.0.1:443 HTTP/1.1", "CONNECT localhost:443 HTTP/1.1",
    "CONNECT other.example:443 HTTP/1.1", "CONNECT allowed.example:22 HTTP/1.1", "CONNECT allowed.example HTTP/1.1",
    "CONNECT allowed.example:443@127.0.0.1:443 HTTP/1.1", f"GET http://127.0.0.1:{HOST['port']}/ HTTP/1.1",
    "CONNECT allowed.example.:443 HTTP/1.1", "CONNECT  HTTP/1.1", "x")})
""",
        desktop,
    )
    assert set(found.values()) == {"HTTP/1.1 403"}, found


def test_other_processes_are_neither_seen_nor_traced_nor_ended(inside):
    pid = this_process_host().pid
    found = inside(f"""
libc = ctypes.CDLL(None, use_errno=True)
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import os; print(os.getppid(), flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
trace = "import ctypes, os; c = ctypes.CDLL(None); print(c.ptrace(16, 1, 0, 0), os.access('/proc/1/mem', os.W_OK))"
done = subprocess.run([sys.executable, "-I", "-S", "-c", trace], capture_output=True, text=True).stdout.split()
report(pids=sorted(int(name) for name in os.listdir("/proc") if name.isdigit()), me=os.getpid(), parent=os.getppid(),
       kills=[refused(os.kill, number, 9) for number in ({pid}, {os.getpid()}, 99999)], traced=done)
child.kill()
""")
    assert found["me"] == 1 and found["parent"] == 0 and len(found["pids"]) <= 3
    assert all(found["kills"]) and found["traced"] == ["-1", "False"]
    assert inside.is_well()


def test_a_sandbox_has_no_descriptor_but_its_channel(inside):
    found = inside("""
paths = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
report(fds=[os.readlink(path) for path in paths if os.path.lexists(path)])
""")
    kinds = [name for name in found["fds"] if not name.startswith("/dev/null")]
    assert len([name for name in kinds if name.startswith("socket:")]) <= 2, found  # the channel, and this report's own
    assert not [name for name in kinds if not name.startswith(("socket:", "/proc/"))], found


def processes_named(marker: str) -> list[int]:
    return [one.pid for one in psutil.process_iter(["cmdline"]) if marker in (one.info["cmdline"] or ())]


def test_what_a_sandbox_starts_ends_with_it(inside):
    marker = uuid.uuid4().hex
    inside(f"""
command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)", "{marker}"]
for _ in range(3):
    subprocess.Popen(command, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execv(sys.executable, command)
    os._exit(0)
report(started=4)
""")
    eventually(lambda: not processes_named(marker))


def test_the_next_evaluation_finds_nothing_of_the_last(inside):
    inside("""
for folder in ("/scratch", "/scratch/work", "/scratch/cache/t", "/scratch/home", "/dev/shm"):
    Path(folder, "left").write_text("left")
import builtins, desktop_env.evaluators.metrics.general as general
import desktop_env.evaluators.metrics as metrics
general.exact_match = metrics.exact_match = lambda *a, **k: 1.0
builtins.len = lambda x: 0
sys.modules["json"] = None
report(done=1)
""")
    assert inside.is_well()
    found = inside("""
folders = ("/scratch", "/scratch/work", "/scratch/cache/t", "/scratch/home", "/dev/shm")
report(left=[folder for folder in folders if os.path.exists(folder + "/left")])
""")
    assert found["left"] == []


def test_a_verdict_is_of_this_episode(make):
    """Once the module of the first stayed imported: good, then bad, scored 1 and 1."""
    desktop = make(evaluator_runs_policy_code=True)
    desktop.guest.files = {"/a.py": b"", "/tests.py": b"import solution\ntest = lambda: solution.x == 1"}
    files = {"type": "vm_file", "path": ["/a.py", "/solution.py"], "dest": ["a.py", "solution.py"], "multi": True}
    task = evaluated_by("check_python_file_by_test_suite", files, file_at("/tests.py"))
    for code, score in ((b"x = 1", 1.0), (b"x = 2", 0.0), (b"x = 1", 1.0)):
        desktop.guest.files["/solution.py"] = code
        assert desktop.score_of(task) == score


def test_evaluations_side_by_side_do_not_share_a_folder_or_a_path(make):
    """`chdir` and `sys.path` are a process's: desktops of one worker raced for them."""
    desktops = [make(evaluator_runs_policy_code=True) for _ in range(3)]
    together = threading.Barrier(len(desktops), timeout=600)

    def evaluate(number: int) -> list[float]:
        desktop = desktops[number]
        test = f"import os, solution\ntest = lambda: solution.x == {number} and 'solution.py' in os.listdir('.')"
        desktop.guest.files = {"/tests.py": test.encode(), "/solution.py": f"x = {number}".encode()}
        task = evaluated_by("check_python_file_by_test_suite", file_at("/solution.py"), file_at("/tests.py"))
        scores = []
        for _ in range(3):
            together.wait()
            scores.append(desktop.score_of(task))
        return scores

    with ThreadPoolExecutor(len(desktops)) as threads:
        assert list(threads.map(evaluate, range(len(desktops)))) == [[1.0] * 3] * 3


def test_sandboxes_side_by_side_do_not_see_each_other(make, host):
    first, second = Inside(make, host), Inside(make, host)
    is_up, is_done = threading.Event(), threading.Event()
    first.desktop.guest.replies["/up"] = lambda _: (is_up.set(), (200, {}, b"") if is_done.wait(60) else None)[1]
    with ThreadPoolExecutor(1) as thread:
        begun = thread.submit(
            first,
            """
a = socket.socket(socket.AF_UNIX); a.bind(chr(0) + "sandbox"); a.listen()
t = socket.create_server(("127.0.0.1", 6000))
Path("/scratch/mine").write_text("mine"); Path("/dev/shm/mine").write_text("mine")
urllib.request.urlopen("http://127.0.0.1:5000/up", timeout=70).close()
report(uid=os.getuid())
""",
        )
        try:
            assert is_up.wait(60)
            found = second("""
def connect(family, address):
    with socket.socket(family) as s:
        s.connect(address)
report(uid=os.getuid(), abstract=refused(connect, socket.AF_UNIX, chr(0) + "sandbox"),
       tcp=refused(connect, socket.AF_INET, ("127.0.0.1", 6000)), files=os.path.exists("/scratch/mine"),
       memory=os.path.exists("/dev/shm/mine"), pids=[n for n in os.listdir("/proc") if n.isdigit()])
""")
        finally:
            is_done.set()
    assert found["abstract"] and found["tcp"] and found["pids"] == ["1"]
    assert not found["files"] and not found["memory"]
    if os.geteuid() == 0:
        assert begun.result()["uid"] != found["uid"]


def test_a_fork_bomb_ends_with_its_sandbox(inside):
    found = inside("""
started, bomb = 0, "import _thread, time; _thread.stack_size(1 << 16)\\n"
bomb += "while True: _thread.start_new_thread(time.sleep, (600,)); print(1, flush=True)"
for _ in range(3):
    command = [sys.executable, "-I", "-S", "-c", bomb]
    started += len(subprocess.run(command, capture_output=True, text=True).stdout.split())
pids = []
try:
    while len(pids) < 5000:
        pids.append(subprocess.Popen(["sleep", "600"]).pid)
except OSError as error:
    pass
report(started=started, pids=len(pids))
""")
    assert found["pids"] < 512 and found["started"] < 3 * 512
    assert inside.is_well()


def test_memory_and_disk_are_bounded(make, host):
    inside = Inside(make, host)
    desktop = make(evaluator_runs_policy_code=True, evaluator_memory_gib=0.25)
    found = inside(
        """
memory = refused(bytearray, 400 << 20)
with open("/scratch/large", "wb", 0) as file:
    file.seek(3 << 30)
    sparse = refused(file.write, b"x")
def fill():
    for n in range(200_000):
        open(f"/scratch/work/{n}", "x").close()
import resource
report(memory=memory, sparse=sparse, inodes=refused(fill), raised=refused(
    lambda: resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, 1 << 40))))
""",
        desktop,
    )
    assert "MemoryError" in found["memory"] and found["sparse"] and found["raised"]
    assert "No space left" in found["inodes"] or "Too many" in found["inodes"]


@pytest.mark.release
@pytest.mark.skipif("memory" not in OFFERED, reason="this machine offers no cgroup of memory")
def test_memory_that_no_process_owns_is_bounded_too(make, host):
    """Shared memory and many processes: one sandbox took 5 GiB, and would have had all that the host has."""
    desktop = make(evaluator_runs_policy_code=True, evaluator_memory_gib=0.25)
    inside = Inside(make, host)
    found = inside(
        """
import mmap
pid = os.fork()
if not pid:
    shared, chunk = mmap.mmap(-1, 2 << 30), bytes([1]) * (64 << 20)
    while True:
        shared.write(chunk)
report(ended=os.waitpid(pid, 0)[1])
""",
        desktop,
    )
    assert found["ended"] == signal.SIGKILL
    assert inside.is_well()


def test_nothing_that_all_sandboxes_share_can_be_written_or_used_up(inside):
    """As an unprivileged user a sandbox could leave files for the next in its host, and everywhere take terminals."""
    found = inside("""
mounts = [line.split() for line in open("/proc/self/mounts")]
report(writable=[m[1] for m in mounts if m[2] == "tmpfs" and m[3].split(",")[0] == "rw"],
       terminal=refused(os.openpty), dies_first=open("/proc/1/oom_score_adj").read())
""")
    assert set(found["writable"]) == {"/scratch", "/dev/shm"}
    assert found["terminal"] and int(found["dies_first"]) >= 500


def test_system_calls_that_no_metric_needs_are_refused(inside):
    found = inside("""
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    libc.syscall(*words)
    return ctypes.get_errno()
report(keyctl=call(250, 0, -3, 1), io_uring=call(425, 8, 0), userfaultfd=call(323, 0), bpf=call(321, 0, 0, 0),
       read=call(310, 1, 0, 0, 0, 0, 0), memfd=call(319, b"x", 0), shmget=call(29, 0, 4096, 0o600))
""")
    assert all(found.values()), found


def test_a_sandbox_that_hangs_is_ended_in_time_and_is_no_verdict(make, host):
    desktop = make(evaluator_runs_policy_code=True, evaluate_timeout_s=2)
    desktop.guest.files = {"/a.py": b"", "/tests.py": b"import time\ntest = lambda: time.sleep(600)"}
    desktop.reset(BY_TEST_SUITE)
    started = time.monotonic()
    with pytest.raises(EvaluatorError, match="took more than"):
        desktop.evaluate()
    assert time.monotonic() - started < 300


def test_a_desktop_that_is_closed_while_it_is_evaluated_ends_the_sandbox(make, host):
    desktop = make(evaluator_runs_policy_code=True)
    runs = threading.Event()
    desktop.guest.replies["/runs"] = lambda _: (runs.set(), (200, {}, b""))[1]
    code = "import time, urllib.request as u\ndef test():\n u.urlopen('http://127.0.0.1:5000/runs')\n time.sleep(600)"
    desktop.guest.files = {"/a.py": b"", "/tests.py": code.encode()}
    desktop.reset(BY_TEST_SUITE)
    closer = threading.Thread(target=lambda: (runs.wait(60), desktop.close()))
    closer.start()
    with pytest.raises(DesktopError):
        desktop.evaluate()
    closer.join()


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(1, 9) or os._exit(1)", "ctypes.string_at(0)", "os.abort()"])
def test_a_sandbox_that_dies_is_no_verdict_and_harms_no_other(make, host, end):
    inside = Inside(make, host)
    desktop = inside.desktop
    desktop.guest.files = {"/a.py": b"", "/tests.py": f"import ctypes, os\ndef test():\n {end}\n".encode()}
    pid = this_process_host().pid
    desktop.reset(BY_TEST_SUITE)
    with pytest.raises(EvaluatorError, match="broke in check_python_file_by_test_suite"):
        desktop.evaluate()
    assert inside.is_well() and this_process_host().pid == pid


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


FORGED = {
    "nan": frame(b'{"verdict": {"score": NaN}}'),
    "infinite": frame(b'{"verdict": {"score": 1e999}}'),
    "too-much": frame(b'{"verdict": {"score": 1.5}}'),
    "negative": frame(b'{"verdict": {"score": -1}}'),
    "large-number": frame(b'{"verdict": {"score": ' + b"9" * 4000 + b"}}"),
    "text": frame(b'{"verdict": {"score": "1"}}'),
    "truth": frame(b'{"verdict": {"score": true}}'),
    "null": frame(b'{"verdict": {"score": null}}'),
    "nothing": frame(b'{"verdict": {}}'),
    "list": frame(b"[1.0]"),
    "nested": frame(b'{"verdict": {"score": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"),
    "extra": frame(b'{"verdict": {"score": 1.0, "__class__": "x"}}'),
    "metrics": frame(b'{"verdict": {"score": 1.0, "metrics": [{"metric": 1}]}}'),
    "no-json": frame(b"\x80\x04cos\nsystem\n"),
    "no-text": frame(b'{"verdict": "\xff"}'),
    "long": struct.pack(">I", 0xFFFFFFFF) + b"{}",
    "cut-off": struct.pack(">I", 100) + b"{}",
    "fault": frame(b'{"fault": {"class": "SystemExit", "message": "x"}}'),
    "fault-of-builtins": frame(b'{"fault": {"class": "__builtins__", "message": "x"}}'),
    "fault-of-ours": frame(b'{"fault": {"class": "ConfigError", "message": "x"}}'),
    "fault-of-no-kind": frame(b'{"fault": {"class": [], "message": {}}}'),
    "flood": frame(b'{"reads": "metric"}') * 2000,
}


@pytest.mark.parametrize("name", FORGED)
def test_what_a_sandbox_says_is_checked(make, host, name):
    """Code in the sandbox can say any score of 0 to 1, which is why none gets there. It cannot say anything else."""
    desktop = make(evaluator_runs_policy_code=True)
    code = f"""
import os, time
def test():
    for number in range(3, 100):
        try:
            if os.readlink(f"/proc/self/fd/{{number}}").startswith("socket:"):
                os.write(number, {FORGED[name]!r})
        except OSError:
            pass
    os._exit(0)
"""
    desktop.guest.files = {"/a.py": b"", "/tests.py": code.encode()}
    desktop.reset(BY_TEST_SUITE)
    with pytest.raises((EvaluatorError, DesktopLostError)):
        desktop.evaluate()
    desktop.guest.replies["/execute"] = lambda _: printed("yes")
    assert desktop.score_of(HONEST) == 1.0


@pytest.mark.release
def test_a_sandbox_host_that_dies_is_replaced(make):
    desktop = make()
    desktop.guest.replies["/execute"] = lambda _: printed("yes")
    assert desktop.score_of(HONEST) == 1.0
    gone = this_process_host()
    gone.close()
    assert desktop.score_of(HONEST) == 1.0
    assert this_process_host().pid != gone.pid


def test_a_large_result_is_a_wrong_one(make, host):
    desktop = make()
    tree = json.dumps({"directory_tree": [[[["x" * 400] * 12] * 12] * 12] * 12}).encode()
    desktop.guest.replies["/list_directory"] = lambda body: (200, {}, tree)
    task = evaluated_by("exact_match", {"type": "list_directory", "path": "/"}, rule(expected="yes"))
    assert desktop.score_of(task) == 0.0


def test_a_list_behind_a_tag_is_no_sound(tmp_path):
    from arpo_verl.desktops.osworld.verdict.closed_ways import HostileData, check_media

    tag = b"ID3\3\0\0\0\0\0\x0a" + bytes(10)
    song = tmp_path / "song.mp3"
    for content in (tag + b"\xff\xfb\x90\x00" + bytes(100), tag + bytes(40)):
        song.write_bytes(content)
        check_media(str(song))
    for content in (tag + b"ffconcat version 1.0\nfile gold.wav\n", tag * 3 + b"#EXTM3U\n", DASH.encode()):
        song.write_bytes(content)
        with pytest.raises(HostileData, match="neither sound nor film"):
            check_media(str(song))
