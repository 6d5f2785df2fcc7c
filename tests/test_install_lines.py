"""Every command that installs packages, in documents and messages, works: it resolves, and what has no wheel builds."""

import ast
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from support import ROOT
from support.pythons import find_python

from arpo_verl import versions
from arpo_verl.desktops.osworld.lean_imports import DEFERRED
from arpo_verl.desktops.providers import PROVIDERS
from arpo_verl.desktops.vm.build import _PURE
from arpo_verl.versions import EXTRA_OF_MODULE, OLDEST, OPTIONAL, TESTED, install_extra, install_for_gpus, pip_install

UV = Path(sys.executable).with_name("uv")
PACKAGE = ROOT / "arpo_verl"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OLDEST_PYTHON, GPU_PYTHON = "3.11", "3.12"
MAKERS = ("pip_install", "install_extra", "install_for_gpus")
# What the calls come to whose packages are known only when they are made, by their file.
OF_LOCAL_NAMES = {
    "tools/cli/checks/packages.py": [
        *(pip_install(f"{name}=={version}") for name, version in TESTED.items() if name != "desktop-env"),
        *map(pip_install, OPTIONAL),
        pip_install(f"TransferQueue>={OLDEST['TransferQueue']}"),
    ],
    "tools/cli/install_osworld.py": [],  # puts back what was there
    "desktops/osworld/evaluation.py": [],  # as in lean_imports
    "desktops/osworld/lean_imports.py": list(map(pip_install, DEFERRED.values())),
    "desktops/provider_checks.py": [
        pip_install(*sorted(set(provider.packages.values()))) for provider in PROVIDERS.values() if provider.packages
    ],
    "plugin/run_folder.py": [],  # the version of the trainer's node
    "versions.py": [*map(install_extra, sorted(set(EXTRA_OF_MODULE.values()))), install_for_gpus()],
    "desktops/vm/build.py": [pip_install(name, options=["--no-deps"]) for name in _PURE],
}


def documented():
    """(place, Python, commands in their order) of each block of a document that has some."""
    for document in DOCUMENTS:
        for block in re.split(r"\n\s*\n", document.read_text(encoding="utf-8")):
            commands = [match.strip() for match in re.findall(r"(?<!uv )pip install ([^`#\n&]*)", block)]
            python = re.search(r"Python (3\.\d+)", block)
            if any(commands):
                yield document.name, python[1] if python else OLDEST_PYTHON, tuple(filter(None, commands))


def calls(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") in MAKERS]


def told():
    """The same for what the package's messages tell to type."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        lines = list(OF_LOCAL_NAMES.get(place, ()))
        for call in calls(path) if place != "versions.py" else ():
            module = importlib.import_module("arpo_verl." + place.removesuffix(".py").replace("/", "."))
            try:
                lines.append(eval(compile(ast.Expression(call), place, "eval"), {**vars(versions), **vars(module)}))  # noqa: S307
            except NameError:
                assert place in OF_LOCAL_NAMES, f"{place}: say above what {ast.unparse(call)} comes to"
        for line in lines:
            commands = tuple(command.strip().removeprefix("pip install ") for command in line.split("&&"))
            yield place, GPU_PYTHON if "verl[" in line else OLDEST_PYTHON, commands


def resolve(command, python, folder):
    """`{name: the package in the lock}` of a command's arguments."""
    words = shlex.split(command)
    requirements = [str(ROOT) if word == "." else word for word in words if not word.startswith("-")]
    (folder / "requirements.in").write_text("\n".join(requirements))
    lock = folder / "pylock.toml"
    lock.unlink(missing_ok=True)
    platform = ["--python-version", python, "--python-platform", "x86_64-manylinux_2_31"]
    options = ["--no-deps"] if "--no-deps" in words else []
    compiled = [UV, "pip", "compile", "--quiet", *platform, *options, "--output-file", lock, folder / "requirements.in"]
    done = subprocess.run(compiled, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return {package["name"]: package for package in tomllib.loads(lock.read_text())["packages"]}


def build_tools(installed, folder):
    """A Python with what `installed` has for building, and this environment's torch: the same, but for its size."""
    assert installed["torch"]["version"] == metadata.version("torch").partition("+")[0]
    subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    tools = [name for name in ("setuptools", "wheel", "ninja", "psutil", "packaging") if name in installed]
    pinned = ["pip", *(f"{name}=={installed[name]['version']}" for name in tools)]  # as in a new environment of 3.12
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *pinned], check=True)
    # A folder on the path that comes after the environment's own.
    ours = str(metadata.distribution("torch").locate_file(""))
    (next(folder.glob("lib/python*/site-packages")) / "torch.pth").write_text(ours)
    return python


def check_builds(commands, python, folder):
    """Whether everything that is published as source alone builds where its turn comes."""
    installed = {}
    for command in commands:
        packages = resolve(command, python, folder)
        for name, package in packages.items():
            if package.get("wheels") or "version" not in package or name in installed:
                continue
            wanted = f"{name}=={package['version']}"
            if "--no-build-isolation" in command:
                # To its metadata: what comes then is the compiler's, which needs CUDA.
                tools = build_tools(installed, folder / "tools")
                build = [tools, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--no-build-isolation"]
                build += ["--dest", folder / "built", wanted]
            else:
                build = [UV, "pip", "install", "--no-deps", "--python", find_python(python) or sys.executable]
                build += ["--target", folder / "built", wanted]
            done = subprocess.run(build, capture_output=True, text=True)
            assert done.returncode == 0, (
                f"{command}: {wanted} does not build: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        installed |= packages


def test_no_message_spells_an_install_command_by_itself():
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    for path in [path for path, text in texts.items() if "pip install" in text]:
        tree = ast.parse(texts[path])
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        spelt = [node.value for node in strings if "pip install" in node.value and id(node) not in documents]
        assert not spelt, f"{path}: {spelt}; take versions.pip_install"


def test_no_document_installs_us_from_an_index():
    found = list(documented())
    assert {"README.md", "osworld.md", "versions.md"} <= {place for place, _, _ in found}
    assert not [line for line in found if re.search(r"arpo[-_]verl", " ".join(line[2]))]


@pytest.mark.release
def test_every_install_line_resolves_and_builds(tmp_path):
    lines = {(python, commands): place for place, python, commands in (*documented(), *told())}
    assert len(lines) > 20
    problems = []
    for (python, commands), place in lines.items():
        try:
            check_builds(commands, python, tmp_path)
        except AssertionError as error:
            problems.append(f"{place}, Python {python}: {error}")
    assert not problems, "\n\n".join(problems)


@pytest.mark.release
def test_the_gpu_packages_in_one_line_do_not_build(tmp_path):
    """What the documents said: flash-attn's build imports torch, and an isolated one has none."""
    with pytest.raises(AssertionError, match=r"(?s)flash-attn==2\.8\.3 does not build.*No module named 'torch'"):
        check_builds(["'verl[vllm,fsdp]==0.9.1'"], GPU_PYTHON, tmp_path)
