"""Virtual machines cloned from a template, beside cold boots of the same image.

    python benchmarks/vm_desktops.py --image DISK.qcow2 [--smoke] [--json PATH] [--vm KEY=VALUE ...] [--parts PART ...]

`arpo-verl vm build FOLDER` makes an image; `osworld` and `tls` need one of `--osworld --package libnss3-tools`. Figures
that the JSON has already stay: parts may be run apart, and a part that played tasks goes on where it was ended. Without
`--vm accelerator=kvm` machines are emulated, on one processor with 1 GiB; what is said of KVM must be measured there.

    machines  cold_boot_s, cold_boot_cpu_s  from nothing to a screenshot; processors' time of QEMU and its guest
              reset_s, reset_cpu_s          the same of a clone, median; its clock set, its randomness its own
              reset_over_cold_boot          the ratio of the processors' times, which other load does not change
              reset_over_cold_boot_wall     of the wall times
              cold_mib, clone_mib           proportional memory after some work, of a machine that booted, and the mean
                                            of `together` clones that live at once, each after the work
              memory_over_cold              the ratio of the two
              same_draws                    pairs of clones that drew the same from any source of randomness
              clock_error_s                 the most that a clone's clock was off, delays of asking included
    resets    resets, leaks                 resets in a row, by a provider as the pool uses it; processes and open files
                                            that are left after them, and files of the template that have changed
    embedded  tasks, same_verdicts          tasks of the embedded suite, and those judged as on the embedded desktop: 0
                                            for doing nothing, 1 for the expert
              embedded                      the two scores of each task, or the fault of its last attempt
              faults                        attempts that a fault ended; they were made again, as the pool does
    osworld   osworld_tasks, osworld_same   tasks of OSWorld's own that run on the embedded desktop, and those judged as
                                            there: 0 for doing nothing and 1 for the scripted solution, or 1 for FAIL
              osworld                       what came of each, as osworld_tasks.py tells it
    tls       tls                           titles of two pages that Chromium shows in a clone: of a server whose
                                            certificate became valid after the template was saved, and of one whose
                                            will be tomorrow
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import statistics
import time
from argparse import Namespace
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import osworld_tasks
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from figures import Arguments, machine, show, write
from support.machines import patient
from support.osworld import harness

from arpo_verl.cli.options import parse_options
from arpo_verl.config import build_config
from arpo_verl.desktop.relay import HOST, SERVER_PORT
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import DesktopError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.types import Size, Task
from arpo_verl.vm import template
from arpo_verl.vm.boot import start
from arpo_verl.vm.config import VmConfig
from arpo_verl.vm.image import Image
from arpo_verl.vm.machine import Machine, version, which
from arpo_verl.vm.measure import proportional_mib
from arpo_verl.vm.provider import QemuProvider

Figures = dict[str, Any]

SCREEN = Size(640, 480)
TIMEOUT_S = 1800.0
ATTEMPTS = 3
DRAW = "import os, random, time, uuid; print(os.urandom(8).hex(), random.random(), uuid.uuid4(), time.time())"
WORK = "import os; os.system('l3afpad /etc/fstab &'); open('/home/user/a', 'wb').write(bytes(8 << 20))"
OSWORLD_INDEX = "no_download.json"
"""Of OSWorld's task files: what needs no download."""
TLS_PORTS = (8443, 8444)
TLS_TITLE, REFUSED_TITLE = "over TLS", "Privacy error"
TLS_SERVERS = """
import http.server, ssl, threading
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<title>over TLS</title>")
for port in PORTS:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"/tmp/{port}.pem")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever).start()
"""
TLS_START = """
import os, subprocess
for path, content in FILES.items():
    open(path, "w").write(content)
store = "sql:/home/user/.pki/nssdb"
os.makedirs("/home/user/.pki/nssdb", exist_ok=True)
subprocess.run(["certutil", "-N", "-d", store, "--empty-password"], check=True)
subprocess.run(["certutil", "-A", "-d", store, "-n", "ours", "-t", "C,,", "-i", "/tmp/authority.pem"], check=True)
for command in (["python3", "/tmp/servers.py"], ["google-chrome", "--remote-debugging-port=1337"]):
    subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
TLS_PAGES = """
import json, urllib.request
def ask(path, method="GET"):
    request = urllib.request.Request("http://localhost:1337/json" + path, method=method)
    return json.load(urllib.request.urlopen(request, timeout=60))
titles = {}
try:
    pages = {page["url"]: page["title"] for page in ask("")}
    for page in (f"https://localhost:{port}/" for port in PORTS):
        if page in pages:
            titles[page] = pages[page]
        else:
            ask("/new?" + page, "PUT")
except OSError:  # it has not started yet
    pass
print(json.dumps(titles))
"""


def main() -> None:
    arguments = Arguments(__doc__, smoke="a few resets, one task")
    arguments.add_argument("--image", type=Path, required=True, help="the .qcow2 file")
    arguments.add_argument("--vm", action="append", default=[], metavar="KEY=VALUE", help="as environment.vm.KEY")
    arguments.add_size("--resets", 200, 3, "resets in a row")
    arguments.add_size("--together", 8, 2, "clones that live at once")
    arguments.add_size("--tasks", 32, 1, "tasks of the embedded suite")
    arguments.add_argument("--domains", default="", help="of OSWorld's tasks, with commas between them; else all")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=("machines", "resets", "embedded"))
    chosen = arguments.parse()
    given = {"accelerator": "tcg", "memory_mib": 1024, "cpus": 1, **parse_options(chosen.vm, "--vm", "environment.vm.")}
    config, image = build_config(VmConfig, "environment.vm", given), Image.at(chosen.image)
    known = chosen.json is not None and chosen.json.is_file()
    figures: dict[str, Any] = json.loads(chosen.json.read_text()) if known else {}
    for part in chosen.parts:
        shape = {name: getattr(config, name) for name in ("accelerator", "memory_mib", "cpus")}
        told = {**machine(), **shape, "qemu": ".".join(map(str, version(which(config))))}
        figures.setdefault("parts", {})[part] = told
        PARTS[part](config, image, chosen, figures)
        write(figures, chosen.json)
    show(figures)


def machines(config: VmConfig, image: Image, chosen: Namespace, figures: Figures) -> None:
    """One that boots, and clones that live at once; all work."""
    folder = template.ensure(config, image, SCREEN, TIMEOUT_S, print)
    began = time.monotonic()
    with contextlib.closing(start(config, image, SCREEN, None, TIMEOUT_S)) as booted:
        cold_s, cold_cpu_s = time.monotonic() - began, booted.processor_s()
        python(booted, WORK)
        cold_mib = proportional_mib(booted)
    seconds, cpu_s, clones, drawn = [], [], [], []
    clock_error_s = 0.0
    with contextlib.ExitStack() as stack:
        for _ in range(chosen.together):
            began = time.monotonic()
            clones.append(start(config, image, SCREEN, folder, TIMEOUT_S))
            stack.callback(clones[-1].close)
            seconds.append(time.monotonic() - began)
            cpu_s.append(clones[-1].processor_s())
            asked = time.time()
            *draws, told = python(clones[-1], DRAW).split()
            drawn.append(set(draws))
            clock_error_s = max(clock_error_s, asked - float(told), float(told) - time.time())
        for one in clones:
            python(one, WORK)
        memory = [proportional_mib(one) for one in clones]
    reset_s, reset_cpu_s, clone_mib = statistics.median(seconds), statistics.median(cpu_s), statistics.mean(memory)
    figures |= {
        "cold_boot_s": cold_s,
        "cold_boot_cpu_s": cold_cpu_s,
        "together": chosen.together,
        "reset_s": reset_s,
        "reset_cpu_s": reset_cpu_s,
        "reset_over_cold_boot": reset_cpu_s / cold_cpu_s,
        "reset_over_cold_boot_wall": reset_s / cold_s,
        "cold_mib": cold_mib,
        "clone_mib": clone_mib,
        "memory_over_cold": clone_mib / cold_mib,
        "same_draws": sum(bool(one & other) for index, one in enumerate(drawn) for other in drawn[:index]),
        "clock_error_s": clock_error_s,
    }


def resets(config: VmConfig, image: Image, chosen: Namespace, figures: Figures) -> None:
    """A provider's, as the pool uses it."""
    folder = template.ensure(config, image, SCREEN, TIMEOUT_S, print)
    before = {path.name: template.digest(path) for path in folder.iterdir()}
    provider = QemuProvider(config, str(image.disk), SCREEN, TIMEOUT_S)
    provider.start_emulator()
    provider.revert_to_snapshot()  # what is made once in a process is made
    provider.stop_emulator()
    held = left_over(config)
    for _ in range(chosen.resets):
        provider.revert_to_snapshot()
    provider.stop_emulator()
    time.sleep(1)
    leaks = sum(max(0, now - then) for now, then in zip(left_over(config), held, strict=True))
    changed = before != {path.name: template.digest(path) for path in folder.iterdir()}
    figures |= {"resets": chosen.resets, "leaks": leaks + changed}


def left_over(config: VmConfig) -> tuple[int, ...]:
    """Sandboxes, with which their QEMU ends, open files of this process (sockets among them), and files that machines
    write to. Others that run machines at the same time have another `folder`."""
    scratch = os.fsencode(config.path / "writable")
    processes = sum(scratch in read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    return processes, len(os.listdir("/proc/self/fd")), len(list((config.path / "writable").iterdir()))


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def embedded(config: VmConfig, image: Image, chosen: Namespace, figures: Figures) -> None:
    """The expert's verdicts and an idler's, on one desktop that is reset between them."""
    tasks = load_tasks("embedded")[: chosen.tasks]
    done = figures.setdefault("embedded", {})
    figures.setdefault("faults", 0)
    with contextlib.closing(desktop_of(config, image, SCREEN, settle_timeout_s=10.0)) as desktop:
        for task in tasks:
            if task.task_id not in done:
                scores = [score(desktop, patient(task), plays, figures) for plays in (False, True)]
                print(task.task_id, *scores, flush=True)
                done[task.task_id] = scores
                write(figures, chosen.json)
    figures |= {"tasks": len(done), "same_verdicts": sum(scores == [0.0, 1.0] for scores in done.values())}


def osworld(config: VmConfig, image: Image, chosen: Namespace, figures: Figures) -> None:
    """Those of OSWorld's own tasks that run on the embedded desktop."""
    harness.PATIENCE_S = TIMEOUT_S
    tasks_dir = harness.find_tasks_dir()
    if tasks_dir is None:
        raise SystemExit(f"name OSWorld's task files by {harness.TASKS_VARIABLE}")
    domains = [name for name in chosen.domains.split(",") if name]
    done = figures.setdefault("osworld", {})
    with contextlib.closing(desktop_of(config, image, harness.SCREEN)) as desktop:
        for domain, path in osworld_tasks.read_index(tasks_dir, OSWORLD_INDEX, domains):
            if path.stem not in done and osworld_tasks.refusal(path)[0] is not None:
                outcome = osworld_tasks.run(desktop, domain, path, True)
                osworld_tasks.show(outcome)
                done[path.stem] = {
                    name: value for name, value in dataclasses.asdict(outcome).items() if value not in (None, "")
                }
                done[path.stem]["same"] = outcome.as_expected
                write(figures, chosen.json)
    figures |= {"osworld_tasks": len(done), "osworld_same": sum(outcome["same"] for outcome in done.values())}


def desktop_of(config: VmConfig, image: Image, screen: Size, **more: float) -> OSWorldEnvironment:
    """With the pace of an emulated machine."""
    environment = EnvironmentConfig(
        provider="qemu",
        screen_size=screen,
        path_to_vm=str(image.disk),
        vm=dataclasses.asdict(config),  # type: ignore[arg-type]  as YAML gives it
        action_pause_s=2.0,
        settle_interval_s=0.5,
        evaluate_pause_s=2.0,
        guest_attempts=3,
        guest_retry_s=1.0,
        boot_timeout_s=TIMEOUT_S,
        evaluate_timeout_s=TIMEOUT_S,
        **more,  # type: ignore[arg-type]
    )
    return OSWorldEnvironment(environment, "benchmark")


def score(desktop: OSWorldEnvironment, task: Task, plays: bool, figures: Figures) -> float | str:
    """Of an attempt that no fault ended; the last fault where each attempt had one."""
    fault = ""
    for _ in range(ATTEMPTS):
        try:
            desktop.reset(task)
            for reply in expert_replies(task.task_id) if plays else ():
                for action in reply.actions:
                    desktop.step(action)
            return desktop.evaluate().score
        except DesktopError as error:
            fault = str(error)
            print(f"{task.task_id}: {fault}", flush=True)
            figures["faults"] += 1
    return fault


def tls(config: VmConfig, image: Image, chosen: Namespace, figures: Figures) -> None:
    """Chromium in a clone asks two servers there, whose certificates were made after the template."""
    folder = template.ensure(config, image, SCREEN, TIMEOUT_S, print)
    now = datetime.datetime.now(datetime.UTC)
    files = certificates(dict(zip(TLS_PORTS, (now, now + datetime.timedelta(days=1)), strict=True)))
    files["/tmp/servers.py"] = f"PORTS = {TLS_PORTS}\n{TLS_SERVERS}"
    titles: dict[str, str] = {}
    with contextlib.closing(start(config, image, SCREEN, folder, TIMEOUT_S)) as clone:
        python(clone, f"FILES, PORTS = {files!r}, {TLS_PORTS}\n{TLS_START}")
        deadline = time.monotonic() + TIMEOUT_S
        while set(titles.values()) != {TLS_TITLE, REFUSED_TITLE} and time.monotonic() < deadline:
            titles = json.loads(python(clone, f"PORTS = {TLS_PORTS}\n{TLS_PAGES}"))
            time.sleep(1)
    age_s = now.timestamp() - (folder / "state").stat().st_mtime
    figures |= {"tls": titles, "tls_template_age_s": age_s}


def certificates(valid_from: Mapping[int, datetime.datetime]) -> dict[str, str]:
    """Files of an authority's certificate and, by port, of servers with their keys."""
    authority_key, authority = ec.generate_private_key(ec.SECP256R1()), name_of("authority")
    first = min(valid_from.values())
    issued = certificate(authority, authority_key, authority, authority_key, first)
    files = {"/tmp/authority.pem": issued}
    for port, since in valid_from.items():
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        files[f"/tmp/{port}.pem"] = private.decode() + certificate(
            name_of("localhost"), key, authority, authority_key, since
        )
    return files


def name_of(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    since: datetime.datetime,
) -> str:
    """For thirty days; an authority's where it is the issuer's own."""
    is_authority = subject == issuer
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(since).not_valid_after(since + datetime.timedelta(days=30))
    made = made.add_extension(x509.BasicConstraints(is_authority, None), critical=True)
    if not is_authority:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    return made.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def python(one: Machine, code: str) -> str:
    """What the code prints in the guest."""
    body = json.dumps({"command": ["python", "-c", code], "shell": False})
    with contextlib.closing(HTTPConnection(HOST, one.ports[SERVER_PORT], timeout=300)) as connection:
        connection.request("POST", "/execute", body, {"Content-Type": "application/json"})
        return str(json.loads(connection.getresponse().read())["output"])


PARTS = {"machines": machines, "resets": resets, "embedded": embedded, "osworld": osworld, "tls": tls}

if __name__ == "__main__":
    main()
