"""The desktop of a virtual machine, in namespaces of root's instead of a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest

pytestmark = [pytest.mark.desktop, pytest.mark.skipif(os.geteuid() != 0, reason="only root has such namespaces")]

BOOT = """
import http.client, json, os, subprocess, time
from arpo_verl.desktops.embedded import sandbox
from arpo_verl.desktops.embedded.guest import layout, machine, namespaces
namespaces.open_loopback()
for folder in sandbox.WRITABLE:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder], check=True)
os.chdir("/")
machine.USER_ID = 0  # without any privilege; another may not read where this Python is installed
if {refused}:
    def refuse(): raise PermissionError(1, "unshare of processes")
    namespaces.ProcessNamespaces.fork = lambda self: refuse()
def execute(line, apart):
    connection = http.client.HTTPConnection("127.0.0.1", layout.SERVER_PORT, timeout=60)
    asked = {{"command": line, "shell": True, "apart": apart}}
    connection.request("POST", "/execute", json.dumps(asked), {{"Content-Type": "application/json"}})
    return json.loads(connection.getresponse().read())["output"].split()
if os.fork() == 0:
    while True:
        try:
            told = [execute("echo $TMPDIR; pgrep -c .", apart) for apart in (False, True)]
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    print(json.dumps(told), flush=True)
    os._exit(0)
machine.serve_desktop(320, 240)
"""


@pytest.mark.parametrize("refused", [False, True])
def test_commands_run_apart_where_the_machine_lets_us_make_namespaces(refused):
    namespaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"]
    command = [*namespaces, sys.executable, "-c", BOOT.format(refused=refused)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        hangs = threading.Timer(600, process.kill)
        hangs.start()
        assert process.stdout is not None
        told = process.stdout.readline()
        process.kill()  # and with it all that it started
        hangs.cancel()
    session, apart = json.loads(told)
    if refused:
        assert len(session) == len(apart) == 1, "no folder of its own"
    else:
        assert apart[0] == "/dev/shm"
        assert int(apart[1]) > int(session[0]), "it sees all processes, and the desktop those below it"
