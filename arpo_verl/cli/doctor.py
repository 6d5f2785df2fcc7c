"""`arpo-verl doctor`: what is installed and registered, which tasks can run here, and what to do about the rest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from arpo_verl.cli.checks.finding import Finding
from arpo_verl.cli.checks.machine import check_embedded_desktop, check_machine
from arpo_verl.cli.checks.packages import check_osworld, check_registrations, check_versions
from arpo_verl.cli.options import add_environment_options, build_environment


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "doctor",
        help="check this machine, or tasks against it, and say what to do",
        description="Checks this machine or, with --task-dir, whether it can run each task there and what is missing. "
        "The exit status is 0 when nothing required is missing and every task can run.",
    )
    tasks = parser.add_argument_group("tasks instead of the machine")
    tasks.add_argument("--task-dir", metavar="DIR", help="a folder of task files, or an index such as test_all.json")
    form = tasks.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--markdown", action="store_true", help="print tables")
    add_environment_options(tasks)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding; 0 when nothing required is missing."""
    return _check_tasks(args) if args.task_dir is not None else _check_machine()


def _check_tasks(args: argparse.Namespace) -> int:
    from arpo_verl.cli.checks import tasks

    reports = tasks.report_tasks(args.task_dir, build_environment(args, {"screen_size": [1920, 1080]}))
    write = tasks.as_json if args.json else tasks.as_markdown if args.markdown else tasks.as_text
    print(write(reports))
    return 0 if all(report.ok for report in reports) else 1


def _check_machine() -> int:
    findings = [*check_versions(), *check_registrations(), check_osworld(), *check_embedded_desktop(), *check_machine()]
    _print(findings)
    failed = [finding for finding in findings if finding.required and not finding.ok]
    print(f"{len(failed)} of {len(findings)} checks failed" if failed else "everything required is here")
    return 1 if failed else 0


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        mark = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
        print(f"[{mark}] {finding.subject}: {finding.detail}")
        if not finding.ok and finding.remedy:
            print(f"       -> {finding.remedy}")
