"""Scripts are read, never run: what is plain is understood, what only a shell could know is told."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo_verl.errors import ConfigError
from arpo_verl.migration.script import MAX_BYTES, Command, Unreadable, read_script

TRAINER = "python3 -m verl.trainer.main"


def overrides(text: str) -> dict:
    [command] = read_script(text)
    return command.overrides


@pytest.mark.parametrize("space", ["\u00a0", "\u2028", "\x0b", "\x0c", "\x85"])
def test_what_is_a_space_to_python_alone_is_a_part_of_its_word(space):
    """A script that was copied off a page may have some; one such outside of quotes was an assertion that failed."""
    assert overrides(f"python -m verl.trainer.main data.seed=a{space}b{space}") == {"data.seed": f"a{space}b{space}"}


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
    assert read_script(script) == [
        Command(
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
    ]


def test_a_default_stands_for_what_only_the_environment_knows():
    assert overrides(f'{TRAINER} a="${{A:-x}}" "b=${{B-y z}}" "$@"')["a"] == "x"
    assert overrides(f"A=1\n{TRAINER} a=${{A:-x}}") == {"a": "1"}
    assert overrides(f"A=1\n{TRAINER} ${{A:+a=2}} ${{B:+b=2}} c=${{C:=3}} d=$C") == {"a": "2", "c": "3", "d": "3"}


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ("{} a=$HOME", "does not assign HOME"),
        ('{} a="run_$(date +%s)"', "$(date +%s)"),
        ("{} a=`whoami`", "`whoami`"),
        ("N=4\n((N = N**2))\n{} a=$N", "not computed"),
        ("{} a=$((2**3))", "not computed"),
        ("{} a=$((B+1))", "not computed"),
        ("{} a=$((1/0))", "not computed"),
        ("{} a=$1", "argument 1 of the script"),
        ("f() {{ {} a=$2\n}}\nf x", "argument 2 of the function"),
        ("for A in $(ls); do {} a=$A; done", "a loop gives A several values"),
        ("if true_or_not; then A=1; else A=2; fi\n{} a=$A", "decides A: '1' or '2'"),
        ("A=1\nwhile x; do A=2; done\n{} a=$A", "decides A"),
        ("case $X in a) A=1;; *) A=2;; esac\n{} a=$A", "decides A"),
        ("read A < file\n{} a=$A", "reads A from elsewhere"),
        ("A=1\nunset A\n{} a=$A", "does not assign A"),
        ("{} a=${{A//x/y}}", "not computed"),
        ("grep -q x y && A=1\n{} a=$A", "a condition of the script decides A: unset or '1'"),
        ("A=$(pwd)\nB=$A/x\n{} a=$B", "is not run"),
        ("A+=2\n{} a=$A", "does not assign A"),
        ("A=2 | cat\n{} a=$A", "does not assign A"),
        ("(A=2)\n{} a=$A", "does not assign A"),
        ("{} a=$'x\\ty'", "not computed"),
    ],
)
def test_what_only_running_it_could_tell_is_unreadable(script, because):
    value = overrides(script.format(TRAINER))["a"]
    assert isinstance(value, Unreadable) and because in value.because


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo {0} a=1", "must start a training"),
        ("pkill -f verl.trainer.main", "must start a training"),
        ("python -m verl.trainer.main_generation a=1", "it starts verl.trainer.main_generation"),
        ("{0}_ppo a=1", "starts veRL"),
        ("cd x; bash $DIR/train_8b.sh 8", "it starts $DIR/train_8b.sh. Convert the script that does"),
        ("source ./common.sh\nsbatch run.slurm", "it starts ./common.sh, run.slurm. Convert the script that does"),
        ("{0} a='1", "line 1 of the script"),
        ("x\n{0} a=$(b", "line 2 of the script"),
        ("if true; then {0} a=1", "ends in the middle"),
        ("{0} a=1\nfi", "line 2 of the script cannot be read: `fi`"),
        ("x=1 (a)", "`(` is unexpected"),
        ("for a in 1 2 3; do for b in 1 2 3 4 5 6 7 8; do {0} a=$a b=$b; done; done", "more than 20 trainings"),
        ("{0} a=" + "x" * MAX_BYTES, "at most"),
        ("{0} config=a\0b", "bytes, none of them null"),
        ("A=" + "x" * 1000 + "\n" + "A=$A$A\n" * 20 + "{0} a=$A", "at most"),
    ],
)
def test_a_script_that_cannot_be_followed_is_refused(script, message):
    with pytest.raises(ConfigError) as refusal:
        read_script(script.format(TRAINER))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("script", "values"),
    [
        ("A='a=1 b=2'\n{0} $A", [{"a": "1", "b": "2"}]),
        ('A=(a=1 \'b=2 3\')\n{0} "${{A[@]}}" "c=${{A[1]}}"', [{"a": "1", "b": "2 3", "c": "b=2 3"}]),
        ('A=(a=1 b=2)\nbash -c "cd x && {0} ${{A[*]}} c=3"', [{"a": "1", "b": "2", "c": "3"}]),
        ('run() {{ bash -c "{0} $* c=3"; }}\nrun a=1 b=2', [{"a": "1", "b": "2", "c": "3"}]),
        (
            "{0} a=<PATH> b=1 c=<your path>/x \\\n d=2 <in >out",
            [{"a": "<PATH>", "b": "1", "c": "<your_path>/x", "d": "2"}],
        ),
        ("A=<your model>\n{0} a=$A b=1", [{"a": "<your_model>", "b": "1"}]),
        ("if true; then A=1; else A=2; fi\n{0} a=$A", [{"a": "1"}]),
        ("if x; then A=1; else A=1; fi\n{0} a=$A", [{"a": "1"}]),
        ("if x; then exit 1; fi\nA=1 && B=2\n{0} a=$A b=$B", [{"a": "1", "b": "2"}]),
        ("if x; then {0} a=1; else {0} a=2; fi", [{"a": "1"}, {"a": "2"}]),
        ("x || {{ A=1; exit 1; }}\n{0} a=1\nexit 0\n{0} a=2", [{"a": "1"}]),
        ("for n in 4 8; do {0} a=$n; done", [{"a": "4"}, {"a": "8"}]),
        ('run() {{ {0} a=$1 b=$B "${{@:2}}"; }}\nB=3\nrun 1', [{"a": "1", "b": "3"}]),
        ("function run {{\n{0} a=1\n}}", [{"a": "1"}]),
        ("declare -r A=2; local B=3\n{0} a=$A b=$B", [{"a": "2", "b": "3"}]),
        ("A=1\n(A=2)\n{0} a=$A", [{"a": "1"}]),
        ("A=1\nA+=2\n{0} a=$A", [{"a": "12"}]),
        ("N=7; ((M = N / -2)); let K=M*2\n{0} a=$((N % 4 + M)) b=$K", [{"a": "0", "b": "-6"}]),
        ("A_B=1; C=B; D=A_$C\n{0} a=${{!D}}", [{"a": "1"}]),
        ("CMD='{0} a=1'\neval $CMD", [{"a": "1"}]),
        ("ssh host 'cd x; {0} a=1'", [{"a": "1"}]),
        ("{0} a=1 a=2 --flag", [{"a": "2"}]),
        ("{0} --a.b=1 +c=2 ++d.e=--f=3 --config=x.yaml", [{"a.b": "1", "c": "2", "d.e": "--f=3"}]),
        ("{0} a=1; {0} a=1", [{"a": "1"}]),
        ("[ 2 -gt 1 ] && [[ a != b ]] && A=1\n{0} a=$A", [{"a": "1"}]),
        ("python verl/trainer/main.py a=1 <<< input > >(tee log) 2>&1 &", [{"a": "1"}]),
        ("cat <<-X | bash\n\t{0} a=1\n\tX\n", [{"a": "1"}]),
    ],
)
def test_what_the_script_itself_says_is_followed(script, values):
    assert [command.overrides for command in read_script(script.format(TRAINER))] == values


def test_an_assignment_before_a_command_is_the_commands_alone():
    assert overrides(f"A=1\nA=2 true\nexport B=3\n{TRAINER} a=$A b=$B") == {"a": "1", "b": "3"}


@pytest.mark.parametrize(
    "text",
    ["(", "((" + "a" * 100_000 + "))\n", "${", "$(", "<", '"${', "`", "<<A\n", "{ "],
    ids=["bracket", "arithmetic", "braces", "command", "redirection", "inner", "backtick", "document", "group"],
)
def test_no_script_takes_long(text):
    began = time.thread_time()
    with pytest.raises(ConfigError):
        read_script((text * (MAX_BYTES // len(text) + 1))[:MAX_BYTES])
    assert time.thread_time() - began < 10


def test_nothing_of_a_script_is_run(tmp_path):
    trace = tmp_path / "trace"
    overrides(f"touch {trace}; A=$(touch {trace})\n{TRAINER} a=`touch {trace}` b=$A")
    assert not trace.exists()


@given(st.text(alphabet="aA=\"'$(){}`\\\n #;|&<>.1", max_size=60))
@settings(deadline=None)
def test_any_text_is_read_or_refused(text):
    try:
        commands = read_script(f"{text}\n{TRAINER} a=1")
    except ConfigError:
        return
    assert all("a" in command.overrides for command in commands)
