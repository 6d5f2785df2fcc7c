"""Count the lines of the package, the tests and a GPU run's path; fail if there are more than pyproject.toml allows.

The path is every module that a training run's processes reach by imports, those inside of functions included.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
PATH = "gpu_run"
HOOKS = ("agent_loop", "checkpoints", "dataset", "estimator", "sampler")
"""The modules of `plugin/` that veRL loads into a run."""


def lines_of(paths) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def gpu_run():
    """Yield the files of the modules that the hooks reach."""
    import grimp

    sys.path.insert(0, str(ROOT))
    imports = grimp.build_graph("arpo_verl", exclude_type_checking_imports=True, cache_dir=None)
    reached, left = set(), {f"arpo_verl.plugin.{hook}" for hook in HOOKS}
    while left:
        reached |= left
        left = {each for module in left for each in imports.find_modules_directly_imported_by(module)} - reached
    for module in reached:
        place = ROOT.joinpath(*module.split("."))
        yield place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


status = 0
for name, most in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["arpo_verl"]["lines"].items():
    lines = lines_of(gpu_run() if name == PATH else (ROOT / name).rglob("*.py"))
    print(f"{name}: {lines:,} lines of Python (at most {most:,})")
    if lines > most:
        status = 1
        print(
            f"{name} is {lines - most:,} over its budget. Remove as many lines; or raise {name} in pyproject.toml, "
            "[tool.arpo_verl.lines], in a commit whose message says what for."
        )
sys.exit(status)
