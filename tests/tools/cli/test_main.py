"""What every command has in common."""

import errno
import json
import os
import subprocess
import sys
from argparse import _SubParsersAction

import pytest
from support import ROOT

from arpo_verl.tools.cli import convert, main
from arpo_verl.versions import EXTRA_OF_MODULE, explain_missing, extra_requirements, install_extra, pip_install

# Every parser's help, nested ones too; then what this took.
HELP_OF_ALL = """
import argparse, json, sys
from arpo_verl.tools.cli.main import COMMANDS, build_parser

def helps(parser):
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    found = {parser.prog: parser.format_help()}
    for action in nested:
        for one in action.choices.values():
            found |= helps(one)
    return found

found = {}
for name in COMMANDS:
    found |= helps(build_parser(name)._subparsers._group_actions[0].choices[name])
print(json.dumps([found, build_parser().format_help(), sorted(sys.modules)]))
"""


def end_by(monkeypatch, error):
    """Run a command that raises this error; return the exit status."""

    def run(args):
        raise error

    monkeypatch.setattr(convert, "run", run)
    return main.main(["convert", "a.sh"])


@pytest.mark.parametrize(
    ("number", "name", "line"),
    [
        (errno.ENOTDIR, "/x/y", "/x/y is a file or leads through one, where a folder is needed; name another place"),
        (errno.EACCES, "/x", "you may not use /x; name another place, or change who may use it"),
        (errno.EROFS, "/x", "the disk of /x is read-only; name another place"),
        (errno.ENOSPC, "/x", "the disk of /x is full; free some space, then run the same command again"),
        (errno.ENOSPC, None, "the disk of a file that was being written is full; free some space, then"),
        (errno.EDQUOT, "/x", "your share of the disk of /x is used up; free some space, then"),
        (errno.ENOENT, "/x", "there is no /x; check the path"),
        (errno.EIO, "/x", "[Errno 5] Input/output error: '/x'"),
    ],
)
def test_what_the_file_system_refuses_is_told_in_one_sentence(monkeypatch, capsys, number, name, line):
    assert end_by(monkeypatch, OSError(number, os.strerror(number), name)) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"arpo-verl: {line}") and told.count("\n") == 1


def test_without_a_command_the_list_of_them_is_shown(capsys):
    assert main.main([]) == 2
    assert "usage: arpo-verl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(errno.EPIPE, "a socket"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        ModuleNotFoundError("No module named 'of_nobody'", name="of_nobody"),
    ],
)
def test_any_other_error_keeps_its_traceback(monkeypatch, error):
    with pytest.raises(type(error)):
        end_by(monkeypatch, error)


def test_ctrl_c_ends_a_command_in_one_line(monkeypatch, capsys):
    assert end_by(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "\narpo-verl: interrupted\n"


@pytest.mark.parametrize(("lines", "unbuffered"), [(1, ""), (1, "1"), (100_000, "")])
def test_a_reader_that_has_seen_enough_is_no_error(lines, unbuffered):
    command = f"from arpo_verl.tools.cli import convert, main; convert.run = lambda _: print('x\\n' * {lines})\n"
    command += "raise SystemExit(main.main(['convert', 'a.sh']))"
    reader, writer = os.pipe()
    os.close(reader)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", command], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, env=env, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", main.COMMANDS)
def test_no_command_takes_the_beginning_of_an_option_for_it(command, capsys):
    parsers = [main.build_parser(command)]
    for parser in parsers:
        nested = [action.choices.values() for action in parser._actions if isinstance(action, _SubParsersAction)]
        parsers += [one for choices in nested for one in choices]
    for parser in parsers:
        abbreviated = [option[:-1] for option in parser._option_string_actions if option.startswith("--")]
        assert not any(parser._get_option_tuples(option) for option in abbreviated), parser.prog
    for word in ("--hel", "--vers"):
        with pytest.raises(SystemExit, match="2"):
            main.main([word])
        assert f"there is no option {word}; did you mean --" in capsys.readouterr().err


def test_an_override_may_stand_behind_an_option_and_a_mistyped_option_between_them_is_named(capsys):
    words = ["train", "demo", "a=1", "--weights-from", "runs/first", "b=2", "--console", "c=3"]
    args = main.build_parser("train").parse_args(words)
    assert (args.recipe, args.overrides, args.console) == ("demo", ["a=1", "b=2", "c=3"], True)
    with pytest.raises(SystemExit):
        main.build_parser("train").parse_args([*words[:3], "--consol", *words[5:6]])
    assert capsys.readouterr().err.count("there is no option --consol; did you mean --console?") == 1


def test_the_help_of_every_command_needs_the_standard_library_alone():
    command = [sys.executable, "-S", "-c", HELP_OF_ALL]  # -S: nothing that is installed
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    helps, whole, modules = json.loads(done.stdout)
    assert {f"arpo-verl {name}" for name in (*main.COMMANDS, "replay inspect", "vm build", "recipes copy")} <= set(
        helps
    )
    listed = " ".join(whole.split())  # without its line breaks
    assert all(f"{name} {line}" in listed for name, line in main.COMMANDS.items())
    assert "numpy" not in modules


def test_a_command_imports_no_other_one(tmp_path):
    code = "import sys; from arpo_verl.tools.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, "summary", tmp_path], capture_output=True, text=True)
    imported = {name for name in done.stdout.split() if name.startswith("arpo_verl.tools.cli.")}
    assert imported == {f"arpo_verl.tools.cli.{name}" for name in ("main", "parser", "summary")}


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("ray", ["evaluate", "--endpoint", "http://127.0.0.1:1/v1", "--tasks", "embedded", "--out", "OUT"]),
        ("hydra", ["doctor", "--recipe", "embedded"]),
        ("hydra", ["replay", "seed", "RUN", "--recipe", "RECIPE.yaml", "--out", "OUT"]),
    ],
)
def test_a_missing_package_is_told_in_one_sentence_with_the_extra_that_brings_it(tmp_path, module, command):
    code = (
        "import sys; sys.modules[sys.argv[1]] = None; "
        "from arpo_verl.tools.cli.main import main; sys.exit(main(sys.argv[2:]))"
    )
    command = [sys.executable, "-c", code, module, *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    line = f"arpo-verl: this needs {module}, which the extra `trainer` brings; {install_extra('trainer')}\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_an_extra_is_installed_by_its_packages_and_never_by_our_name():
    assert install_extra("desktop") == "pip install python-xlib==0.33"
    assert install_extra("vm") == "pip install 'qemu.qmp>=0.0.6'"
    assert "arpo" not in " ".join(explain_missing(module) for module in EXTRA_OF_MODULE)
    assert all(extra_requirements(extra) for extra in EXTRA_OF_MODULE.values())
    assert pip_install("a", "b<3", options=["--no-deps"]) == "pip install --no-deps a 'b<3'"
