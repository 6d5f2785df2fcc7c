"""Packaging of arpo_verl: a veRL plugin, found through the entry-point group `verl.plugins`."""

from pathlib import Path

from setuptools import find_packages, setup

# veRL, torch, transformers and vllm are the user's own: requiring them here would let pip move a working install.
# `arpo-verl doctor` says which versions were tested.
REQUIREMENTS = ["filelock", "pillow", "qwen-vl-utils", "requests", "tqdm", "wrapt"]

EXTRAS = {
    # What one needs beside a GPU-less machine to run the stock trainer; the versions veRL 0.9.1 itself pins.
    "trainer": [
        "verl==0.9.1",
        "torch==2.11.0",
        "torchvision==0.26.0",
        "transformers==5.9.0",
        "TransferQueue",
        "pyzmq",
        "msgspec",
        "fastapi",
        "uvicorn",
        "cachetools",
        "tensorboard",
    ],
    # What `arpo-verl view` serves with, which veRL brings too, and `arpo-verl report` writes and draws with.
    "view": ["fastapi", "uvicorn", "jinja2", "matplotlib"],
    # What the embedded desktop's guest runs.
    "desktop": ["python-xlib==0.33"],
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
        "numpy>=2",
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
    "dev": [
        "pytest",
        "pytest-xdist",
        "hypothesis",
        "playwright",
        "psutil",
        "ruff",
        "import-linter",
        "mypy",
        "pandas-stubs",
        "types-python-xlib",
        "types-requests",
        "types-tqdm",
    ],
}

setup(
    name="arpo-verl",
    version="0.1.0",
    description="ARPO for stock veRL: train computer-use agents on real desktops by RL with replay",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    if Path(__file__).with_name("README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    packages=find_packages(include=["arpo_verl", "arpo_verl.*"]),
    package_data={
        "arpo_verl": ["py.typed"],
        "arpo_verl.desktop.guest": [
            "programs/*",
            "skeleton/.*",
            "skeleton/.config/*",
            "skeleton/.config/*/*",
            "skeleton/.config/*/*/*",
        ],
        "arpo_verl.viewer.report": ["templates/*"],
        "arpo_verl.viewer": ["assets/*", "assets/*/*", "assets/*/*/*"],
        "arpo_verl.tasks": ["embedded/*.json", "expert.json"],
    },
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={
        "verl.plugins": ["arpo_verl = arpo_verl.plugin"],
        "console_scripts": ["arpo-verl = arpo_verl.cli.main:main"],
    },
)
