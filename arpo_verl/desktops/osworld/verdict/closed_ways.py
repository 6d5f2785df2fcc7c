"""Close the ways in which a policy's data could become code in OSWorld's metrics, or deceive them.

A sandbox protects everything else from such code, but the verdict itself is made in there too. So a desktop's data may
not become code, name another file, or replace the file that it is compared with. The client's own files stay as they
are: we replace names in its modules, as `client` does with `requests`. docs/verdicts.md lists each way.
"""

from __future__ import annotations

import ast
import errno
import functools
import importlib
import os
import shutil
import sqlite3
import sys
import tarfile
import zipfile
from collections.abc import Collection, Mapping
from typing import Any

from arpo_verl.desktops.osworld.task_files import downloads_of, getters_of
from arpo_verl.errors import EvaluatorError

_METRICS = "desktop_env.evaluators.metrics"
_BASIC_OS, _CHROME, _DOCS = f"{_METRICS}.basic_os", f"{_METRICS}.chrome", f"{_METRICS}.docs"
_UTILS, _VLC, _VSCODE = f"{_METRICS}.utils", f"{_METRICS}.vlc", f"{_METRICS}.vscode"

MAX_LITERAL_CHARACTERS = 1 << 16
MAX_UNPACKED_BYTES = 1 << 30
MAX_ENTRIES = 20_000
"""Most entries of an archive."""
MAX_PIXELS = 1 << 27
"""Most pixels of an image: eight times a screen of 5120x3200."""
# The formats that a desktop's programs write. The others start programs (EPS), or nobody here writes them.
IMAGE_FORMATS = frozenset(
    {"AVIF", "BMP", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "PSD", "QOI", "SGI", "TGA"}
    | {"TIFF", "WEBP", "XBM", "XPM"}
)
# ffmpeg's names of containers: of films, for cv2, and of sounds, for audioread. Playlists are not among them, since
# they name other files: ffmpeg finds one of MPEG-DASH anywhere in a file, however that begins.
_FILMS = "asf,avi,flv,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,mpegvideo,ogg"
_SOUNDS = f"{_FILMS},aac,ac3,aiff,amr,ape,au,caf,flac,mp3,tta,voc,w64,wav,wv"
# How files of sound and films begin.
_MEDIA = (
    *(b"RIFF", b"OggS", b"fLaC", b"FORM", b".snd", b"caff", b"FLV", b"MThd"),
    *(b"\x1aE\xdf\xa3", b"0&\xb2u", b"\x00\x00\x01\xba", b"\x00\x00\x01\xb3", b"\x47"),
)
# Byte 4 of a film of MPEG-4 or QuickTime, after the length of its first part.
_MPEG4 = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_MPEG_SYNC = 0xFFE0

_task_files: set[str] = set()


class HostileData(BaseException):
    """The policy's data tries to be more than data. It is no `Exception`, so that no metric catches it."""


class NoVerdict(BaseException):
    """There can be no verdict; it is no `Exception`, so that no metric catches it and scores."""


def close_all() -> None:
    """Close all ways in this process, after its client is imported."""
    _close_in_metrics()
    _close_images()
    _close_documents()
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = f"format_whitelist;{_FILMS}|protocol_whitelist;file"


def allow_imports(allowed: bool) -> None:
    """Let a metric import the policy's files if `allowed`; these can then give themselves any score."""
    if allowed:
        vars(sys.modules[_VSCODE])["importlib"] = importlib


def know_task_files(paths: Collection[str]) -> None:
    """Remember the files that came with the task: nothing on the desktop can have damaged them."""
    _task_files.clear()
    _task_files.update(map(os.path.realpath, paths))


def keep_apart(spec: Mapping[str, Any]) -> None:
    """Rename in place what getters read from the desktop, if it would replace a file that it is compared with."""
    own = {download.name for download in downloads_of(spec)}
    for getter in getters_of(spec):
        dest = getter.get("dest", [])
        names = dest if isinstance(dest, list) else [dest]
        if getter["type"] != "cloud_file" and own.intersection(names):
            renamed = [f"of_desktop_{name}" for name in names]
            getter["dest"] = renamed if isinstance(dest, list) else renamed[0]


def is_task_file(path: Any) -> bool:
    """Return whether the file came with the task."""
    return os.path.realpath(str(path)) in _task_files


def refuse(path: Any, why: str) -> None:
    """Raise the error for a file that is not what it should be.

    Raises:
        NoVerdict: it is the task's own.
        HostileData: it is the policy's.
    """
    name = os.path.basename(str(path))
    if is_task_file(path):
        raise NoVerdict(f"the task's own file {name} {why}")
    raise HostileData(f"the file {name} {why}")


def literal(text: str) -> Any:
    """Return a Python literal's value; this replaces `eval`. Other text gives a value that no task expects.

    Raises:
        EvaluatorError: there is no text: the guest's command printed nothing, which proves nothing about its desktop.
        HostileData: it is too long.
    """
    if not isinstance(text, str) or not text.strip():
        raise EvaluatorError("a command of the evaluator's printed nothing in the guest")
    if len(text) > MAX_LITERAL_CHARACTERS:
        raise HostileData(f"a value of {len(text)} characters")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return [object()]


# --- Metrics -------------------------------------------------------------------------------------------------------


class Instead:
    """A module or another object with some of its names replaced."""

    def __init__(self, module: Any, **names: Any):
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _close_in_metrics() -> None:
    archives = Instead(zipfile, ZipFile=_ZipFile)
    databases = Instead(sqlite3, connect=_connect)
    for name, module in list(sys.modules.items()):
        if name.startswith("desktop_env.evaluators."):
            if getattr(module, "zipfile", None) is zipfile:
                vars(module)["zipfile"] = archives
            if getattr(module, "sqlite3", None) is sqlite3:
                vars(module)["sqlite3"] = databases
    basic_os, chrome, utils = sys.modules[_BASIC_OS], sys.modules[_CHROME], sys.modules[_UTILS]
    vlc, vscode = sys.modules[_VLC], sys.modules[_VSCODE]
    vars(basic_os)["eval"] = literal
    # The similarity of two opposite pictures is negative, and so is that of tab stops that are far apart.
    for module, name in ((vlc, "compare_images"), (sys.modules[_DOCS], "check_tabstops")):
        vars(module)[name] = vars(sys.modules[_METRICS])[name] = _from_zero(getattr(module, name))
    vars(vscode)["importlib"] = _NoImports()
    vars(chrome)["shutil"] = Instead(shutil, unpack_archive=_unpack_archive)
    vars(vlc)["cv2"] = Instead(vlc.cv2, VideoCapture=functools.partial(_open_film, vlc.cv2))
    vars(vlc)["librosa"] = Instead(vlc.librosa, load=functools.partial(load_sound, vlc.librosa))
    vars(chrome)["fitz"] = Instead(chrome.fitz, open=functools.partial(_open_pdf, chrome.fitz))
    # It would fetch the list of domains' endings from the internet; its built-in list is as good.
    extract = utils.tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    vars(utils)["tldextract"] = Instead(utils.tldextract, extract=extract)


def _from_zero(metric: Any) -> Any:
    @functools.wraps(metric)
    def call(*args: Any, **options: Any) -> Any:
        return max(0.0, metric(*args, **options))

    return call


class _NoImports:
    def __getattr__(self, name: str) -> Any:
        raise NoVerdict(
            "check_python_file_by_test_suite imports what the policy wrote, which can then give itself any score; "
            "leave the task out, or set environment.evaluator_runs_policy_code=true"
        )


class _ZipFile(zipfile.ZipFile):
    """An archive whose entries stay below the folder where they are unpacked, and which is no zip bomb.

    A metric writes entries by their names, so `../expected.epub.dir/a.html` would replace the expected file.
    """

    def __init__(self, file: Any, *args: Any, **options: Any):
        super().__init__(file, *args, **options)
        _check_entries(file, [(entry.filename, entry.file_size) for entry in self.infolist()])

    def extract(self, member: Any, path: Any = None, pwd: bytes | None = None) -> str:
        """Refuse an entry outside of any folder: two getters extract a slide's entry into the folder of task files."""
        name = member.filename if isinstance(member, zipfile.ZipInfo) else str(member)
        if len([part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]) < 2:
            refuse(self.filename, f"has an entry {name[:200]!r} in the place of another file")
        return super().extract(member, path, pwd)


def _check_entries(path: Any, entries: list[tuple[str, int]]) -> None:
    for name, _ in entries:
        if name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/"):
            refuse(path, f"has an entry {name[:200]!r}, which leads outside of it")
    if len(entries) > MAX_ENTRIES or sum(size for _, size in entries) > MAX_UNPACKED_BYTES:
        refuse(path, f"has {len(entries)} entries of {sum(size for _, size in entries)} bytes")


def _unpack_archive(filename: str, extract_dir: str, *args: Any, **options: Any) -> None:
    """Unpack as `shutil.unpack_archive` does, but no links: one could point to the file that it is compared with."""
    try:
        if tarfile.is_tarfile(filename):
            with tarfile.open(filename) as archive:
                entries = archive.getmembers()
            special = [entry.name for entry in entries if not (entry.isfile() or entry.isdir())]
            if special:
                refuse(filename, f"has a link or device, {special[0][:200]!r}")
            _check_entries(filename, [(entry.name, entry.size) for entry in entries])
        elif zipfile.is_zipfile(filename):
            _ZipFile(filename).close()
        shutil.unpack_archive(filename, extract_dir, *args, **options)
    except (shutil.ReadError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        refuse(filename, f"is no archive: {error}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        refuse(filename, "does not fit where it is unpacked")


def _connect(path: str, *args: Any, **options: Any) -> sqlite3.Connection:
    """Connect as `sqlite3.connect` does, but run no code of the database's and open no other file."""
    connection: sqlite3.Connection = sqlite3.connect(path, *args, **options)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK
    )
    return connection


def _open_film(cv2: Any, path: str, *args: Any, **options: Any) -> Any:
    """Open films only, as `cv2.VideoCapture`: ffmpeg accepts a playlist, which could play the expected file."""
    check_media(path)
    capture = cv2.VideoCapture(path, *args, **options)
    # The metric finds two films equal if it can open neither.
    if not capture.isOpened():
        refuse(path, "is no film")
    return capture


def _open_pdf(fitz: Any, path: str) -> Any:
    """Open PDF only, as `fitz.open`: it also opens web pages, books, drawings and comics."""
    document = fitz.open(path)
    if not document.is_pdf:
        refuse(path, "is no PDF")
    return document


def load_sound(librosa: Any, path: str, *args: Any, **options: Any) -> Any:
    """Load sounds only, as `librosa.load`: the metric finds two sounds equal if it can read neither."""
    check_media(path)
    bound_ffmpeg()
    try:
        return librosa.load(path, *args, **options)
    except Exception as error:
        if is_task_file(path):
            raise NoVerdict(f"the task's own {os.path.basename(path)} cannot be read here: {error}") from error
        if type(error).__name__ == "NoBackendError" and shutil.which("ffmpeg"):
            refuse(path, "is no sound: ffmpeg cannot read it either")
        raise


@functools.cache
def bound_ffmpeg() -> None:
    """Restrict audioread, librosa's fallback after soundfile, to ffmpeg and to files of sound."""
    try:
        audioread: Any = importlib.import_module("audioread")
    except ImportError:
        return  # there is no fallback

    ffdec = audioread.ffdec
    start = ffdec.popen_multiple

    def started(commands: Any, arguments: list[str], *args: Any, **options: Any) -> Any:
        bounds = ["-format_whitelist", _SOUNDS, "-protocol_whitelist", "file"] if "-i" in arguments else []
        return start(commands, [*bounds, *arguments], *args, **options)

    vars(ffdec)["popen_multiple"] = started
    vars(audioread)["available_backends"] = lambda: [ffdec.FFmpegAudioFile] if ffdec.available() else []


def check_media(path: str) -> None:
    """Refuse a file that does not begin as sounds and films do."""
    with open(path, "rb") as file:
        begin = head = file.read(16)
        while head[:3] == b"ID3" and len(head) > 10:  # ffmpeg looks for a list behind the tag
            size = sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
            file.seek(size + (20 if head[5] & 0x10 else 10) - len(head), os.SEEK_CUR)
            head = file.read(16)
    tagged = begin[:3] == b"ID3" and head[:1] == b"\0"  # padding
    known = tagged or head.startswith(_MEDIA)
    known = known or (head[4:8] in _MPEG4 and int.from_bytes(head[:4], "big") <= os.path.getsize(path))
    if not known and int.from_bytes(head[:2], "big") & _MPEG_SYNC != _MPEG_SYNC:
        refuse(path, "is neither sound nor film")


# --- Libraries -----------------------------------------------------------------------------------------------------


def _close_images() -> None:
    from PIL import Image

    Image.preinit()
    Image.init()
    for name in set(Image.OPEN) - IMAGE_FORMATS:
        del Image.OPEN[name]
    Image.ID[:] = [name for name in Image.ID if name in Image.OPEN]
    vars(Image)["_decompression_bomb_check"] = _check_pixels


def _check_pixels(size: tuple[int, int]) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise HostileData(f"an image of {size[0]}x{size[1]} pixels")


def _close_documents() -> None:
    from pdfminer import cmapdb

    etree: Any = importlib.import_module("lxml.etree")
    # The default parser resolves entities, and one may be another file.
    etree.set_default_parser(etree.XMLParser(resolve_entities=False, no_network=True))
    load = cmapdb.CMapDB._load_data

    def load_inside(name: str) -> Any:
        # A document names a map of characters; old releases unpickle the file of that name, wherever it is.
        if "/" in name or "\\" in name or ".." in name:
            raise cmapdb.CMapDB.CMapNotFound(name)
        return load(name)

    vars(cmapdb)["CMapDB"]._load_data = staticmethod(load_inside)
