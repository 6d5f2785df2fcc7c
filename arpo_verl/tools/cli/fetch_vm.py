"""`arpo-verl fetch-vm` fetches the virtual machine of OSWorld's Docker desktops, once for a host.

The client's Docker provider would fetch it while a desktop boots, into the first worker's working folder, and several
workers at once into the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import zipfile
from pathlib import Path

from arpo_verl.desktops.providers import OS_TYPES
from arpo_verl.errors import FetchError, MissingDependencyError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fetch-vm",
        description="Downloads the virtual machine of OSWorld's Docker desktops and prints the recipe's line for it. "
        "Ubuntu's takes 12.3 GB as an archive and 24.5 GB unpacked; both stay. If the download is interrupted, run "
        "the command again to resume it.",
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="folder for docker_vm_data/ (default: here)")
    parser.add_argument("--os-type", choices=OS_TYPES, default=OS_TYPES[0])


def run(args: argparse.Namespace) -> int:
    print(f"environment.path_to_vm={fetch(args.folder, args.os_type)}")
    return 0


def fetch(folder: Path, os_type: str) -> Path:
    """Return the VM's file, after the client's own code has downloaded and unpacked it, if it was missing.

    Raises:
        FetchError: the download or the unpacking failed.
        MissingDependencyError: the client is not installed.
    """
    try:
        from desktop_env.providers.docker.manager import DockerVMManager
    except ImportError as error:
        raise MissingDependencyError(f"OSWorld's client is needed ({error}); run arpo-verl install-osworld") from error
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.chdir(folder):  # the client uses the working folder only
            path = Path(DockerVMManager().get_vm_path(os_type=os_type, region=None)).absolute()
        _check_whole(path, path.with_name(f"{path.name}.zip"))
        return path
    except FetchError:
        raise
    except zipfile.BadZipFile as error:
        raise FetchError(
            f"the download in {folder / 'docker_vm_data'} is not a complete .zip archive ({error}); remove the .zip "
            "there and run this again"
        ) from error
    except Exception as error:  # whatever else the client and requests raise
        raise FetchError(
            f"fetching the {os_type} VM into {folder} failed: {error}; run this again to resume, or copy "
            "docker_vm_data/ there from a machine that has it"
        ) from error


def _check_whole(path: Path, archive: Path) -> None:
    """Check the file's size: the client accepts any file, even one whose unpacking was interrupted."""
    if not zipfile.is_zipfile(archive):
        return  # the machine was copied here
    with zipfile.ZipFile(archive) as opened:
        size = {member.filename: member.file_size for member in opened.infolist()}.get(path.name)
    if size is None:
        raise FetchError(f"{archive} does not contain {path.name}; remove it and run this again")
    if path.stat().st_size < size:
        raise FetchError(f"the unpacking of {path} was interrupted; remove that file and run this again")
