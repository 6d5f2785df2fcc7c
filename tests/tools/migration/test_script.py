"""Scripts are read, never run: what is plain is understood, what only a shell could know is told."""

import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo_verl.errors import ConfigError
from arpo_verl.tools.migration.script import MAX_BYTES, Command, Unreadable, read_script

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


@pytest.mark.parametrize(
    ("script", "because"),
    [
        ("x\n\n{} \\\n a=$1 \\\n", "line 4: only running the script shows `$1`"),
        ("{} a=`whoami`", "only running the script shows ``whoami``"),
        ("A=$((8/3))\n{} a=$A", "line 1: only running the script shows `$((8/3))`"),
        ("{} a=$'x\\ty'", "only running"),
        ("A=~/policies\n{} a=$A", "line 1: only running the script shows `~/policies`"),
        ("export A={{1..3}}\n{} a=$A", "line 1: only running the script shows `{1..3}`"),
        ("A=${{!C}} B=2\n{} a=$B", "line 1: only running the script shows `${!C}`"),
        ('IFS=,\nA="1 2"\n{} a=$A', "only running"),
        ("N=4\n((N = N**2))\n{} a=$N", "line 2 of the script decides N"),
        ("let N=4\n{} a=$N", "line 1 of the script decides N"),
        ("A=1\n: $((A++))\n{} a=$A", "line 2 of the script decides A"),
        ("A=1\nf() {{\n{} a=$A\n}}\nA=2\nf", "line 5 of the script decides A"),
        ("f() {{\n{} a=${{A:-1}}\n}}\nA=2\nf", "line 2: only running the script shows `${A:-1}`"),
        ("A=1\nread A < file\n{} a=$A", "line 2 of the script decides A"),
        ("A=1\nprintf -v A 2\n{} a=$A", "line 2 of the script decides A"),
        ("grep -q x y && A=1\n{} a=$A", "line 1 of the script decides A"),
        ("A=2 | cat\n{} a=$A", "line 1 of the script decides A"),
        ("(A=2)\n{} a=$A", "line 1 of the script decides A"),
        ("x && : ${{A:=1}}\n{} a=${{A:-2}}", "line 1 of the script decides A"),
    ],
)
def test_what_only_running_it_could_tell_is_unreadable_with_its_line(script, because):
    value = overrides(script.format(TRAINER))["a"]
    assert isinstance(value, Unreadable) and because in value.because


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo {0} a=1", "must start a training"),
        ("pkill -f verl.trainer.main", "must start a training"),
        ("exit 0\n{0} a=2", "must start a training"),
        ("python -m verl.trainer.main_generation a=1", "it starts verl.trainer.main_generation"),
        ("{0}_ppo a=1", "starts veRL"),
        ("cd x; bash $DIR/train_8b.sh 8", "it starts $DIR/train_8b.sh. Convert the script that does"),
        ("if x; then A='{0}'; fi\n$A a=1", "line 1: the training command within `A="),
        ("\nA=({0})\nA+=(a=1)\n${{A[@]}}", "line 2: the training command within `A="),
        ("cat > x <<-X\n\t{0} a=1\n\tX\n", "line 1: the training command within `cat`"),
        ("{0} a='1", "line 1 of the script"),
        ("x\n{0} a=$(b", "line 2 of the script"),
        ("{0} a=1\n" * 5 + "".join(f"{{0}} a={n}\n" for n in range(30)), "more than 20 trainings"),
        ("{0} a=" + "x" * MAX_BYTES, "at most"),
        ("{0} config=a\0b", "bytes, none of them null"),
        ("A=" + "x" * 1000 + "\n{0} a=" + "$A" * 2000, "words are too long"),
    ],
)
def test_a_script_that_cannot_be_followed_is_refused_with_the_line(script, message):
    with pytest.raises(ConfigError) as refusal:
        read_script(script.format(TRAINER))
    assert message in str(refusal.value)


READ = [
    ("A='a=1 b=2'\n{0} $A", [{"a": "1", "b": "2"}]),
    ('A=1; B=; export C=3 D=$A\n{0} a=${{A:-x}} b=${{B:-y}} c=${{B-y}} d=$C$D e=${{E:-"x y"}}', None),
    ("A=${{A:-2}} B=3; export C=$B\n{0} a=$A b=$B c=$C", [{"a": "2", "b": "3", "c": "3"}]),
    ('A=1\nexport A\necho A=2 "A: $A"\n{0} a=$A', [{"a": "1"}]),
    ("A=1\nif x; then exit 1; fi\nB=2 && C=3\n{0} a=$A b=$B", [{"a": "1", "b": "2"}]),
    ("A=1\nif true; then {0} a=$A; else {0} a=2; fi", [{"a": "1"}, {"a": "2"}]),
    ("for n in 4 8; do {0} a=1; done", [{"a": "1"}]),
    ("function run {{\n{0} a=1\n}}\nrun", [{"a": "1"}]),
    ("run() {{ {0} a=1 b=${{B}}; }}\nrun", None),
    ("{0} a=1 a=2 --flag", [{"a": "2"}]),
    ("{0} --a.b=1 +c=2 ++d.e=--f=3 --config=x.yaml", [{"a.b": "1", "c": "2", "d.e": "--f=3"}]),
    ("{0} a=1; {0} a=1", [{"a": "1"}]),
    ("{0} a=1 <<< input > >(cat) 2>&1", [{"a": "1"}]),
    ("A='{0} a=1'\n$A b=2 | cat", [{"a": "1", "b": "2"}]),
    ("A='it is'\n{0} a=\"$A\" b='$A' c=\\$A d=\"\\$A \\x\"", None),
    ("cat <<'X' <<Y >&2\nit's $(\nX\n\"\nY\n{0} a=1", [{"a": "1"}]),
    ("case $X in (a|b) : ;; *)\n: ;; esac\n{0} a=1 &\nwait", [{"a": "1"}]),
    ("{0} a=1 \\\n # b=2 \\\nc.d=3", [{"a": "1"}]),
    ("[[ a == *b* || $(echo ')') =~ (x|y) ]] && :\n{0} a=['x','y']", [{"a": "[x,y]"}]),
]


@pytest.mark.parametrize(("script", "values"), READ)
def test_what_the_script_itself_says_is_followed_as_a_shell_does(script, values, tmp_path):
    """A shell passes each value that we claim to know; `python3` is a function that only prints its words here."""
    script = script.format(TRAINER)
    commands = read_script(script)
    assert values is None or [command.overrides for command in commands] == values
    shell = f'exec 9>{tmp_path}/words\npython3() {{ printf "%s\\0" "$@" >&9; }}\n{script}'
    subprocess.run(["bash", "-c", shell], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    passed = {word.lstrip("-+") for word in (tmp_path / "words").read_text().split("\0")}
    known = {f"{k}={v}" for command in commands[:1] for k, v in command.overrides.items() if isinstance(v, str)}
    assert known <= passed and known


@pytest.mark.parametrize("template", ["<PATH>", "<your path>/x"])
def test_a_placeholder_is_one_word(template):
    """A shell would read from a file of that name."""
    assert overrides(f"A={template}\n{TRAINER} a=$A b={template} c=1")["c"] == "1"
    assert overrides(f"{TRAINER} b={template} c=1") == {"b": template, "c": "1"}


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("\n. paths.sh\n{0} a=1", "line 2: what `. paths.sh` sets is not known"),
        ("eval $X\n{0} a=1", "line 1: what `eval $X` sets is not known"),
        ('export "$X"\n{0} a=1', "line 1: what `export"),
        ("A=(b=1)\n{0} a=1 \\\n ${{A[@]}}", "`${{A[@]}}` after the training command was left out: line 3"),
        ("{0} a=1 \\\n\nb.c=1 d.e=2", "line 3: `d.e=2` comes after the end of the command"),
    ],
)
def test_what_is_not_followed_is_told_with_its_line(script, note):
    [command] = read_script(script.format(TRAINER))
    assert command.overrides == {"a": "1"}
    assert any(note.format() in one for one in command.notes), command.notes


UNITS = ["(", "((" + "a" * 100_000 + "))\n", "${", "$(", "<", '"${', "`", "<<A\n", "{ ", "cat <<A <<A <<A\n", "x && "]
ENDLESS = {
    **{f"{unit[:9]!r} over and over": (unit * (MAX_BYTES // len(unit) + 1))[: MAX_BYTES - 99] for unit in UNITS},
    "values": "A=" + "x" * 99_000 + "\n" + "$A " * 50_000,
    "blocks": "if x; then\n" * 6000 + "A=1\n" + "fi\n" * 6000,
    "variables": "".join(f"if x; then V{n}=1; fi\n" for n in range(2000)),
    "case": "case $x in " + "a) ;; " * 5000 + "esac",
    "subscripts": "((" + "a[" * 60_000 + "))",
    "braces": "x {" + "," * 200_000,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_script_that_asks_for_endless_work_is_read_or_refused(text):
    began = time.thread_time()
    try:
        assert read_script(f"{text}\n{TRAINER} a=1")[0].overrides == {"a": "1"}
    except ConfigError:
        pass
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
