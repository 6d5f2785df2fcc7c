"""Code of OSWorld's agents: actions go on, anything else that Python could do does not."""

import pytest

from arpo_verl.agent.actions.pyautogui_code import actions_alone
from arpo_verl.errors import ActionParseError

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


@pytest.mark.parametrize(
    "code",
    [
        "import pyautogui\nimport time\n'''\nThought:\nI'd click it.\n'''\n\npyautogui.click(1.5, 2, button='left')",
        "pyautogui.moveTo(10, 20, 0.7, pyautogui.easeInOutQuad)",
        "pyautogui.dragTo(-1, 20, duration=1.0, button='left', mouseDownUp=True)  # there",
        "pyautogui.mouseDown(); time.sleep(0.5); pyautogui.mouseUp()",
        "import pyperclip\npyperclip.copy('x')\npyautogui.hotkey('ctrl', 'v')\ntime.sleep(0.5)\n",
        "pyautogui.hotkey(['ctrl', 'c'], interval=0.1)\npyautogui.keyDown('shift')\npyautogui.keyUp('shift')",
        "pyautogui.scroll(-5, x=1, y=2)\npyautogui.hscroll(3)",
        "import platform; print(platform.system())",
    ],
)
def test_actions_are_what_they_were(code):
    import ast

    read = ast.parse(actions_alone(PREFIX + code))
    assert ast.dump(read) == ast.dump(ast.parse(PREFIX + code))


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.system('id')",
        "import subprocess as pyautogui",
        "from os import system as click",
        "pyautogui.click(__import__('os').system('id'))",
        "pyautogui.click(**vars(pyautogui))",
        "pyautogui.write(open('/etc/passwd').read())",
        "pyautogui.write(f'{1}')",
        "pyautogui.screenshot('/home/user/x.png')",
        "pyautogui.run('c')",
        "pyautogui.click = print",
        "pyautogui.FAILSAFE = open",
        "print(pyautogui.position(), open('x'))",
        "eval('1')",
        "pyautogui.pyscreeze.subprocess.run('id')",
        "'''\nThought:\n''' ; import os ; '''\n'''",
        "x = 1",
        "while True: pass",
        "pyautogui.click(1, 2) if 1 else 2",
        "lambda: 0",
        "pyautogui.moveTo(1, 2, 3, pyautogui.easeInQuad.__globals__)",
        "pyautogui.click(\u0000)",
        "not python",
        "(" * 300,
        "x" + ".a" * 1900,
        "-" * 3900 + "1",
        "pyautogui.click(1, 2);" * 200,
    ],
)
def test_anything_else_is_refused(code):
    with pytest.raises(ActionParseError) as refused:
        actions_alone(PREFIX + code)
    assert len(str(refused.value)) < 400
