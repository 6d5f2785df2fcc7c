"""`arpo-verl fetch-tasks` gets OSWorld's task files at a pinned commit, by download or from a copied archive."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from arpo_verl.errors import FetchError
from arpo_verl.versions import OSWORLD_ARCHIVE, OSWORLD_COMMIT

DESCRIPTION = f"""\
Puts OSWorld's task files (its folder evaluation_examples, 369 tasks in ten domains)
into a folder, at commit {OSWORLD_COMMIT[:12]} of github.com/xlang-ai/OSWorld.
Your own files are never overwritten.
"""
EPILOG = f"""without the internet: on a machine that has it, download
  {OSWORLD_ARCHIVE}
copy the file here, and name it with --archive.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("fetch-tasks", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--folder", type=Path, required=True, help="folder for test_all.json and examples/")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--url", default=OSWORLD_ARCHIVE, help="address of a mirror of the same archive (default: GitHub)"
    )
    source.add_argument("--archive", type=Path, metavar="FILE", help="the archive, if it is already on this machine")


def run(args: argparse.Namespace) -> int:
    """Fetch missing files; print what is there, and the recipe's line."""
    from arpo_verl.tasks.osworld_files import INDEX, count_by_domain, stored_files

    files = stored_files(args.folder)
    if files is None:
        files = _fetch(args.folder, args.url, args.archive)
    counts = count_by_domain(files)
    print(f"{sum(counts.values())} tasks: {', '.join(f'{domain} {count}' for domain, count in counts.items())}")
    print(f"data.train_files={(args.folder / INDEX).absolute()}")
    return 0


def _fetch(folder: Path, url: str, archive: Path | None) -> Mapping[str, bytes]:
    from arpo_verl.tasks.osworld_files import read_archive, store_files

    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".osworld-{OSWORLD_COMMIT[:12]}.part"
    files = read_archive(archive) if archive is not None else _downloaded(url, part)
    store_files(files, folder)
    return files


def _downloaded(url: str, part: Path) -> Mapping[str, bytes]:
    from arpo_verl.tasks.osworld_files import MAX_ARCHIVE_BYTES, download, read_archive

    print(f"downloading {url}")
    try:
        try:
            download(url, part, MAX_ARCHIVE_BYTES)
        except FetchError as error:
            raise FetchError(
                f"{error}. Run the same command again, or name a mirror with --url, or an archive with --archive"
            ) from error
        return read_archive(part)
    finally:
        part.unlink(missing_ok=True)
