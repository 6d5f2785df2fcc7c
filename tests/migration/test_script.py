"""Scripts are read, never run: what is plain is understood, what only a shell could know is told."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo_verl.errors import ConfigError
from arpo_verl.migration.script import MAX_BYTES, Command, Unreadable, read_script

TRAINER = "python3 -m verl.trainer.main"


def overrides(text: str) -> dict:
    return read_script(text).overrides


def test_words_quotes_comments_and_continued_lines_are_a_shells():
    script = (
        "#!/bin/bash\n"
        "set -x  # a.b=no\n"
        "export PYTHONUNBUFFERED=1; BASE='no $NAME'\n"
        'NAME="run ${BASE}" OTHER=x\n'
        f"CUDA_VISIBLE_DEVICES=0,1 {TRAINER} config=examples/config.yaml \\\n"
        '    a.plain=1e-6 a.single=\'["x", "$NAME"]\' \\\r\n'
        '    a.double="say \\"$NAME\\" \\$1" a.triple="""text""" \\\n'
        "    a.joined=pre'fix'_\"${NAME}\" a.escaped=two\\ words a.hash=x#y a.empty= a.list=['a','b'] 2>&1 | tee log\n"
        "echo a.later=1 > out\n"
    )
    assert read_script(script) == Command(
        "examples/config.yaml",
        {
            "a.plain": "1e-6",
            "a.single": '["x", "$NAME"]',
            "a.double": 'say "run no $NAME" $1',
            "a.triple": "text",
            "a.joined": "prefix_run no $NAME",
            "a.escaped": "two words",
            "a.hash": "x#y",
            "a.empty": "",
            "a.list": "[a,b]",
        },
    )


def test_a_default_stands_for_what_only_the_environment_knows():
    assert overrides(f'{TRAINER} a="${{A:-x}}" "b=${{B-y z}}" "$@"')["a"] == "x"
    assert overrides(f"A=1\n{TRAINER} a=${{A:-x}}") == {"a": "1"}


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ("{} a=$HOME", "does not assign HOME"),
        ('{} a="run_$(date +%s)"', "$(date +%s)"),
        ("{} a=`whoami`", "`whoami`"),
        ("N=4\n((N = N*2))\n{} a=$N", "not computed"),
        ("{} a=$((2+3))", "not computed"),
        ("{} a=$1", "not computed"),
        ("{} a=${{A//x/y}}", "not computed"),
        ("[ -z $A ] && A=1\n{} a=$A", "depends on a command"),
        ("A=$(pwd)\nB=$A/x\n{} a=$B", "not computed"),
        ("A=1\nA+=2\n{} a=$A", "`A+=` is not computed"),
        ("A=1\nA=2 | cat\n{} a=$A", "depends on a command"),
        ("{} a=$'x\\ty'", "not computed"),
    ],
)
def test_what_only_running_it_could_tell_is_unreadable(script, because):
    value = overrides(script.format(TRAINER))["a"]
    assert isinstance(value, Unreadable) and because in value.because


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo nothing", "must have one command"),
        ("{0} a=1\n{0} a=2", "got 2"),
        ("if true; then A=1; fi\n{0} a=$A", "`if`"),
        ("for n in 4 8; do {0} a=$n; done", "`for`"),
        ("run() {{\n{0} a=1\n}}\nrun", "`(`"),
        ("source env.sh\n{0} a=1", "`source`"),
        ("A=1\ndeclare A=2\n{0} a=$A", "`declare`"),
        ("A=1\nunset A\n{0} a=$A", "`unset`"),
        ("A=1\n(A=2)\n{0} a=$A", "`(`"),
        ("A=(1 2)\n{0} a=$A", "`(`"),
        ("A='a.b=1 c.d=2'\n{0} $A", "splits 'a.b=1 c.d=2'"),
        ("cat <<EOF\nA=1\nEOF\n{0} a=1", "here-document"),
        ("{0} --config x", "must be KEY=VALUE, got '--config'"),
        ("{0} a='1", "line 1 of the script"),
        ("{0}_ppo a=1", "starts veRL"),
        ("{0} config=$X", "name the file by --config"),
        ("{0} a=" + "x" * MAX_BYTES, "at most"),
        ("A=" + "x" * 1000 + "\n" + "A=$A$A\n" * 20 + "{0} a=$A", "at most"),
    ],
)
def test_a_script_that_cannot_be_followed_is_refused(script, message):
    with pytest.raises(ConfigError) as refusal:
        read_script(script.format(TRAINER))
    assert message in str(refusal.value)


def test_an_assignment_before_a_command_is_the_commands_alone():
    assert overrides(f"A=1\nA=2 true\nexport B=3\n{TRAINER} a=$A b=$B") == {"a": "1", "b": "3"}


@pytest.mark.parametrize(
    "text",
    ["(", "((" + "a" * 100_000 + "))\n", "${", "$(", "<", '"${', "`"],
    ids=["bracket", "arithmetic", "braces", "command", "redirection", "inner", "backtick"],
)
def test_no_script_takes_long(text):
    began = time.process_time()
    with pytest.raises(ConfigError):
        read_script((text * (MAX_BYTES // len(text) + 1))[:MAX_BYTES])
    assert time.process_time() - began < 10


def test_nothing_of_a_script_is_run(tmp_path):
    trace = tmp_path / "trace"
    overrides(f"touch {trace}; A=$(touch {trace})\n{TRAINER} a=`touch {trace}` b=$A")
    assert not trace.exists()


@given(st.text(alphabet="aA=\"'$(){}`\\\n #;|&<>.1", max_size=60))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text):
    try:
        command = read_script(f"{text}\n{TRAINER} a=1")
    except ConfigError:
        return
    assert "a" in command.overrides
