"""Packaging of arpo_verl: a veRL plugin, found through the entry-point group `verl.plugins`."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.sdist import sdist

VERSION = re.search(
    r'^__version__ = "(.+)"$', Path(__file__).with_name("arpo_verl").joinpath("versions.py").read_text(), re.M
)[1]

# What the plugin imports beside veRL, and the commands that need neither veRL nor a desktop. veRL, torch, transformers
# and vllm are the user's own: requiring them here would let pip move a working install. `arpo-verl doctor` says which
# versions were tested. msgspec: before 0.21 its errors are no ValueError, as which we read them.
REQUIREMENTS = [
    "aiohttp",
    "fastapi",
    "filelock",
    "msgspec>=0.21",
    "numpy",
    "pillow",
    "pyyaml",
    "requests",
    "tqdm",
    "uvicorn",
    "wrapt",
]

EXTRAS = {
    # What reads recipes: `arpo-verl doctor --recipe`, beside veRL's own files (`pip install --no-deps verl==0.9.1`).
    "recipes": ["hydra-core", "omegaconf", "transformers==5.9.0"],
    # What one needs beside a GPU-less machine to run the stock trainer; the versions veRL 0.9.1 itself pins.
    "trainer": [
        "verl==0.9.1",
        "torch==2.11.0",
        "torchvision==0.26.0",
        "transformers==5.9.0",
        "TransferQueue",
        "pyzmq",
        "qwen-vl-utils",
        "cachetools",
        "tensorboard",
    ],
    # What the embedded desktop's guest runs.
    "desktop": ["python-xlib==0.33"],
    # How the provider `qemu` speaks to QEMU.
    "vm": ["qemu.qmp>=0.0.6"],
    # What OSWorld's client imports. The client itself pins numpy<2 and torch 2.5: `arpo-verl install-osworld` installs
    # it, and this, without moving a package.
    "osworld": [
        "beautifulsoup4",
        "borb<3",
        "cssselect",
        "docker",
        "fastdtw",
        "formulas",
        "gymnasium",
        "imagehash",
        "librosa",
        "lxml",
        "mutagen",
        "odfpy",
        "opencv-python-headless",
        "openpyxl",
        "pandas",
        "pdfplumber",
        "playwright",
        "psutil",
        "pyacoustid",
        "pydrive",
        "pymupdf<1.27",
        "pypdf",
        "pypdf2",
        "python-docx",
        "python-dotenv",
        "python-pptx",
        "pytz",
        "pyyaml",
        "rapidfuzz",
        "requests-toolbelt",
        "scikit-image",
        "scipy",
        "tldextract",
        "xmltodict",
    ],
    # What `make docs` builds the site with: warnings are errors there, so to the version.
    "docs": [
        "mkdocs==1.6.1",
        "mkdocs-material==9.8.2",
        "mkdocstrings==1.0.8",
        "mkdocstrings-python==2.0.11",
        "pymdown-extensions==13.1",
    ],
    "dev": [
        "pytest",
        "pytest-randomly",
        "pytest-xdist",
        "hypothesis",
        # `make fuzz`. Its wheels are for these alone; elsewhere it would be built, with Clang.
        "atheris==3.0.0; sys_platform == 'linux' and platform_machine == 'x86_64' and python_version >= '3.11' "
        "and python_version < '3.14'",
        "mutmut",
        "playwright",
        # The examples of docs/own-provider.md and docs/harness.md import them.
        "kubernetes",
        "openai",
        "swanlab",
        "psutil",
        # `benchmarks/learning.py` draws its curves with it.
        "matplotlib",
        # What every vLLM brings, and Ray then installs in each of its workers: the tests run as beside one.
        "uvloop",
        "ruff",
        "import-linter",
        "mypy",
        "pandas-stubs",
        "types-python-xlib",
        "types-requests",
        "types-tqdm",
        "build",
        "twine",
        "setuptools>=77.0.3",
    ],
}


class SourceDistribution(sdist):
    """An archive from which the tests run too, not the package alone."""

    def make_distribution(self) -> None:
        for folder in (".ci", "benchmarks", "docs", "tests"):
            self.filelist.graft(folder)
        self.filelist.extend(["CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "SECURITY.md", "constraints.txt"])
        self.filelist.global_exclude("*.py[co]")
        super().make_distribution()


setup(
    name="arpo-verl",
    version=VERSION,
    description="ARPO for stock veRL: train computer-use agents on real desktops by RL with replay",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    keywords=[
        "reinforcement-learning",
        "computer-use",
        "gui-agent",
        "vision-language-model",
        "verl",
        "grpo",
        "experience-replay",
        "osworld",
    ],
    project_urls={"Paper": "https://arxiv.org/abs/2505.16282"},
    license_expression="Apache-2.0",
    license_files=["LICENSE", "arpo_verl/tools/viewer/assets/vendor/*/LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Environment :: X11 Applications",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    # The recipes lie beside the package in the repository, and within it where it is installed. A link of the same name
    # lets a checkout that is on the path, and not installed, find its own.
    packages=[*find_packages(include=["arpo_verl", "arpo_verl.*"], exclude=["arpo_verl.recipes"]), "arpo_verl.recipes"],
    package_dir={"arpo_verl.recipes": "recipes"},
    cmdclass={"sdist": SourceDistribution},
    package_data={
        "arpo_verl": ["py.typed", "*.pyi"],
        "arpo_verl.plugin": ["*.yaml"],
        "arpo_verl.recipes": ["*.yaml", "*/*.yaml"],
        "arpo_verl.desktops.embedded.guest": [
            "programs/*",
            "skeleton/.*",
            "skeleton/.config/*",
            "skeleton/.config/*/*",
            "skeleton/.config/*/*/*",
        ],
        "arpo_verl.tools.viewer": ["assets/*", "assets/*/*", "assets/*/*/*"],
        "arpo_verl.tools.policy": ["weights/*/*"],
        "arpo_verl.tasks": ["embedded/*", "embedded_long/*", "expert*.json"],
    },
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={
        "verl.plugins": ["arpo_verl = arpo_verl.plugin"],
        "vllm.general_plugins": ["arpo_verl = arpo_verl.engines.vllm.segments:register"],
        "console_scripts": ["arpo-verl = arpo_verl.tools.cli.main:main"],
    },
)
