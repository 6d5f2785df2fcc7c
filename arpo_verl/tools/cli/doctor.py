"""`arpo-verl doctor` checks what is installed and registered, which tasks can run here, and what a recipe needs, and
says what to do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from arpo_verl.errors import ConfigError
from arpo_verl.lib.untrusted import printable_lines
from arpo_verl.tools.cli.checks import Finding
from arpo_verl.tools.cli.checks.machine import check_embedded_desktop, check_machine, check_sandbox
from arpo_verl.tools.cli.checks.packages import check_osworld, check_registrations, check_versions
from arpo_verl.tools.cli.options import add_environment_options, build_environment


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        description="Checks this machine. With --task-dir, checks whether it can run each task there, and what is "
        "missing. With --recipe, estimates how much memory and disk a run needs. The exit status is 0 if nothing "
        "required is missing, every task can run, and the recipe fits.",
    )
    sizes = parser.add_argument_group("a recipe instead of the machine")
    sizes.add_argument("--recipe", metavar="NAME", help="a name from `arpo-verl recipes list`, or a YAML file")
    sizes.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of the training command"
    )
    sizes.add_argument(
        "--node-gb", type=float, help="memory of a training node (default: this machine's if it has GPUs)"
    )
    sizes.add_argument("--gpu-gb", type=float, help="memory of one GPU (default: this machine's, or 80)")
    tasks = parser.add_argument_group("tasks instead of the machine")
    tasks.add_argument("--task-dir", metavar="DIR", help="a folder of task files, an index, or NAME:ARGUMENT")
    tasks.add_argument("--markdown", action="store_true", help="print tables")
    add_environment_options(tasks)


def run(args: argparse.Namespace) -> int:
    """Print every finding; return 0 if nothing required is missing."""
    if args.recipe is not None:
        return _check_recipe(args)
    if args.overrides:
        raise ConfigError(f"{' '.join(args.overrides)}: these are overrides of a recipe; name it with --recipe")
    return _check_tasks(args) if args.task_dir is not None else _check_machine()


def _check_tasks(args: argparse.Namespace) -> int:
    from arpo_verl.tools.cli.checks import tasks

    reports = tasks.report_tasks(args.task_dir, build_environment(args, {"screen_size": [1920, 1080]}))
    write = tasks.as_markdown if args.markdown else tasks.as_text
    print(printable_lines(write(reports)))
    return 0 if all(report.ok for report in reports) else 1


def _check_recipe(args: argparse.Namespace) -> int:
    from arpo_verl.tools.cli.checks.recipe import check_recipe_fits

    findings = check_recipe_fits(args.recipe, args.overrides, args.node_gb, args.gpu_gb)
    _print(findings, set())
    return _end(findings, "the recipe passes every check before a start")


def _check_machine() -> int:
    findings: list[Finding] = []
    told: set[str] = set()
    packages = [check_versions, check_registrations, lambda: [check_osworld()]]
    for check in [*packages, check_embedded_desktop, check_sandbox, check_machine]:
        if check is check_registrations:
            print(
                "importing veRL, then OSWorld's client; a slow machine needs minutes ...", file=sys.stderr, flush=True
            )
        found = check()
        _print(found, told)
        findings += found
    return _end(findings, "everything required is here")


def _end(findings: Sequence[Finding], good: str) -> int:
    """Print how many checks failed, or `good`; return the exit status."""
    failed = [finding for finding in findings if finding.required and not finding.ok]
    print(f"{len(failed)} of {len(findings)} checks failed" if failed else good)
    return 1 if failed else 0


def _print(findings: Sequence[Finding], told: set[str]) -> None:
    """Print findings, and each remedy once: one command may install what several of them miss."""
    for finding in findings:
        mark = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
        print(printable_lines(f"[{mark}] {finding.subject}: {finding.detail}"), flush=True)
        if not finding.ok and finding.remedy and finding.remedy not in told:
            told.add(finding.remedy)
            print(printable_lines(f"       -> {finding.remedy}"), flush=True)
