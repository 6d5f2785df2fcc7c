"""Run commands: programs, shell lines, and Python, in warm interpreters."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from . import accessibility, windows
from .apart import ApartCommands
from .interpreter_pool import InterpreterPool
from .messages import Request, Response
from .processes import Command, CommandTimeout, run, start

PYTHON_NAMES = {"python", "python3", "/usr/bin/python", "/usr/bin/python3"}
RUN_PYTHON_TIMEOUT_S = 30.0  # OSWorld's own
VERIFY_TIMEOUT_S = 5.0  # OSWorld's own


def routes(
    pool: InterpreterPool, apart: ApartCommands | None, timeout_s: float
) -> dict[tuple[str, str], Callable[[Request], Response]]:
    """Return the endpoints of this module. `timeout_s` limits every command that does not bring its own time-out."""

    def execute(request: Request) -> Response:
        data = request.json()
        if data.get("apart") and apart is not None:
            return _finished(lambda: apart.run(*_command(data), timeout_s))
        return _finished(lambda: _execute(pool, data, timeout_s))

    def execute_with_verification(request: Request) -> Response:
        data = request.json()
        return _finished(lambda: _execute(pool, data, timeout_s), lambda answer: _verified(pool, answer, data))

    return {
        ("POST", "/execute"): execute,
        ("POST", "/setup/execute"): execute,
        ("POST", "/execute_with_verification"): execute_with_verification,
        ("POST", "/setup/execute_with_verification"): execute_with_verification,
        ("POST", "/run_python"): lambda request: _run_python(pool, request.json(), timeout_s),
        ("POST", "/run_bash_script"): lambda request: _run_bash_script(request.json()),
        ("POST", "/setup/launch"): lambda request: _launch(request.json()),
        ("GET", "/platform"): lambda request: Response.text("Linux"),
        ("GET", "/terminal"): accessibility.terminal,
        ("GET", "/accessibility"): accessibility.tree,
    }


def _execute(pool: InterpreterPool, data: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    command, shell = _command(data)
    if not shell and len(command) == 3 and command[0] in PYTHON_NAMES and command[1] == "-c":
        return pool.run(command[2], timeout_s)
    return run(command, shell, timeout_s)


def _command(data: dict[str, Any]) -> tuple[Command, bool]:
    """Read a command as OSWorld's server does: it splits a line without a shell, and a leading `~/` is the home."""
    shell = bool(data.get("shell", False))
    command = data.get("command", "" if shell else [])
    if isinstance(command, str):
        return (command, True) if shell else (shlex.split(command), False)
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in command], shell


def _finished(
    execute: Callable[[], dict[str, Any]], verify: Callable[[dict[str, Any]], Response] = Response.json
) -> Response:
    try:
        return verify({"status": "success", **execute()})
    except (CommandTimeout, OSError) as error:
        return Response.json({"status": "error", "message": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)


def _verified(pool: InterpreterPool, answer: dict[str, Any], data: dict[str, Any]) -> Response:
    """Wait until all conditions of `verification` hold at once, if there are any."""
    if not data.get("verification"):
        return Response.json(answer)
    started = time.monotonic()
    limit, interval = float(data.get("max_wait_time", 10)), float(data.get("check_interval", 1))
    while (waited := time.monotonic() - started) < limit:
        if _holds(pool, data["verification"]):
            return Response.json({**answer, "verification": "passed", "wait_time": waited})
        time.sleep(interval)
    failed = {**answer, "status": "verification_failed", "verification": "failed", "wait_time": limit}
    return Response.json(failed, HTTPStatus.INTERNAL_SERVER_ERROR)


def _holds(pool: InterpreterPool, verification: dict[str, str]) -> bool:
    title, command = verification.get("window_exists"), verification.get("command_success")
    if title is not None and not windows.exists(title):
        return False
    try:
        return command is None or _succeeds(pool, command)
    except CommandTimeout:
        return False


def _succeeds(pool: InterpreterPool, line: str) -> bool:
    """Return whether a shell line succeeds. One that is only `python -c` runs in a warm interpreter, as elsewhere."""
    code = line.removeprefix("python -c '")
    if code != line and code.find("'") == len(code) - 1 > 0:  # nothing for a shell to do
        return int(pool.run(code[:-1], VERIFY_TIMEOUT_S)["returncode"]) == 0
    return int(run(line, True, VERIFY_TIMEOUT_S)["returncode"]) == 0


def _run_python(pool: InterpreterPool, data: dict[str, Any], timeout_s: float) -> Response:
    if not data.get("code"):
        return Response.error(HTTPStatus.BAD_REQUEST, "Code not supplied!")
    try:
        result = pool.run(data["code"], min(timeout_s, RUN_PYTHON_TIMEOUT_S))
    except CommandTimeout as error:
        message = {"status": "error", "message": f"Execution timeout: {error}", "error": "TimeoutExpired"}
        return Response.json({**message, "need_more": False, "output": None}, HTTPStatus.INTERNAL_SERVER_ERROR)
    errors, status = result["error"], result["returncode"]
    if status != 0 and not errors:
        errors = f"Process exited with code {status}"
    return Response.json(
        {
            "status": "error" if status else "success",
            "message": "\n".join(text for text in (result["output"], errors) if text),
            "need_more": False,
            "output": result["output"],
            "error": errors,
            "return_code": status,
        }
    )


def _run_bash_script(data: dict[str, Any]) -> Response:
    """Answer as OSWorld does: with both outputs as one, and an empty `error`."""
    timeout_s = float(data.get("timeout") or 100)
    cwd = os.path.expanduser(data["working_dir"]) if data.get("working_dir") else None

    def answer(status: str, output: str, returncode: int, code: int = HTTPStatus.OK) -> Response:
        return Response.json({"status": status, "output": output, "error": "", "returncode": returncode}, code)

    if not data.get("script"):
        return answer("error", "Script not supplied!", -1, HTTPStatus.BAD_REQUEST)
    if cwd is not None and not os.path.isdir(cwd):
        return answer("error", f"Working directory does not exist: {cwd}", -1, HTTPStatus.BAD_REQUEST)
    try:
        result = run(["/bin/bash", "-c", data["script"]], False, timeout_s, cwd, merge_errors=True)
    except CommandTimeout:
        text = f"Script execution timed out after {timeout_s:g} seconds"
        return answer("error", text, -1, HTTPStatus.INTERNAL_SERVER_ERROR)
    return answer("error" if result["returncode"] else "success", result["output"], result["returncode"])


def _launch(data: dict[str, Any]) -> Response:
    command, shell = _command(data)
    try:
        start(command, shell)
    except (OSError, ValueError, IndexError) as error:
        return Response.json({"status": "error", "message": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)
    return Response.text(f"{command if shell else ' '.join(command)} launched successfully")
