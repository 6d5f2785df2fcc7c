"""`arpo-verl fetch-vm`: the virtual machine of OSWorld's Docker desktops, fetched once for a host.

The client's Docker provider would fetch it while a desktop boots, into the working folder of whichever worker came
first, and several workers at once into the same file.
"""

from __future__ import annotations

import argparse
import os
import zipfile
from pathlib import Path

from arpo_verl.environments.providers import OS_TYPES
from arpo_verl.errors import FetchError, MissingDependencyError
from arpo_verl.files import FULL


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "fetch-vm",
        description="Downloads the virtual machine of OSWorld's Docker desktops and prints the recipe's line for it. "
        "Ubuntu's takes 12.3 GB as an archive and 24.5 GB unpacked; both stay. Run an interrupted download again: it "
        "goes on where it stopped.",
    )
    parser.add_argument("--folder", type=Path, default=Path(), help="where docker_vm_data/ is made (default: here)")
    parser.add_argument("--os-type", choices=OS_TYPES, default=OS_TYPES[0])
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch, and print the recipe's line."""
    print(f"environment.path_to_vm={fetch(args.folder, args.os_type)}")
    return 0


def fetch(folder: Path, os_type: str) -> Path:
    """The VM's file, downloaded and unpacked by the client's own code where it is not there yet.

    Raises:
        FetchError: the download or the unpacking failed.
        MissingDependencyError: the client is not installed.
    """
    try:
        from desktop_env.providers.docker.manager import DockerVMManager
    except ImportError as error:
        raise MissingDependencyError(f"OSWorld's client is needed ({error}); run arpo-verl install-osworld") from error
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)  # the client knows no other folder
    try:
        path = Path(DockerVMManager().get_vm_path(os_type=os_type, region=None)).absolute()
        _check_whole(path, path.with_name(f"{path.name}.zip"))
        return path
    except FetchError:
        raise
    except Exception as error:  # whatever requests and zipfile raise
        raise FetchError(_explain(os_type, Path.cwd(), error)) from error
    finally:
        os.chdir(before)


def _check_whole(path: Path, archive: Path) -> None:
    """The client takes a file that is there for a whole one, also where its unpacking was interrupted."""
    if not zipfile.is_zipfile(archive):
        return  # the machine was copied here
    with zipfile.ZipFile(archive) as opened:
        size = {member.filename: member.file_size for member in opened.infolist()}.get(path.name)
    if size is None:
        raise FetchError(f"{archive} must hold {path.name}, and does not; remove it and run this again")
    if path.stat().st_size < size:
        raise FetchError(f"the unpacking of {path} was interrupted; remove that file and run this again")


def _explain(os_type: str, folder: Path, error: Exception) -> str:
    import requests  # as the client does

    if isinstance(error, OSError) and error.errno in FULL:
        return f"the disk of {folder} is full, the {os_type} VM takes many GB; free some space and run this again"
    if isinstance(error, (requests.ConnectionError, requests.Timeout)):
        return (
            f"there is no network to where the {os_type} VM is ({type(error).__name__}); run this again where there is "
            f"one, or copy docker_vm_data/ from a machine that has it into {folder}"
        )
    if isinstance(error, zipfile.BadZipFile):
        return (
            f"the download in {folder / 'docker_vm_data'} is no whole .zip archive ({error}); remove the .zip there "
            "and run this again"
        )
    return f"fetching the {os_type} VM into {folder} failed: {error}; run this again, it goes on from there"
