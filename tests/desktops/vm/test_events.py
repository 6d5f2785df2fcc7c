"""What a monitor says by itself: heard by QMP's own client, from a socket that speaks as QEMU does."""

import json
import socket
import threading
import types

import pytest

from arpo_verl.desktops.vm import events
from arpo_verl.desktops.vm.events import DISK_ERROR, SHUTDOWN, Events
from arpo_verl.desktops.vm.machine import VirtualMachine, run_async

GREETING = {"QMP": {"version": {"qemu": {"major": 10, "minor": 0, "micro": 2}, "package": ""}, "capabilities": []}}


def as_event(name, **data):
    return {"event": name, "data": data, "timestamp": {"seconds": 1, "microseconds": 0}}


def heard(said, end=lambda: None):
    """What a client that has heard these events kept of them, and its filter."""
    qmp = pytest.importorskip("qemu.qmp")
    ours, theirs = socket.socketpair()
    connected = threading.Event()

    def speak():
        with theirs, theirs.makefile("rwb") as lines:
            lines.write(json.dumps(GREETING).encode() + b"\r\n")
            lines.flush()
            assert theirs.recv(4096)  # what it can do; it ends no line
            lines.write(b'{"return": {}}\r\n')
            lines.flush()
            assert connected.wait(60)
            for event in said:
                lines.write(json.dumps(event).encode() + b"\r\n")
            lines.flush()

    speaker = threading.Thread(target=speak)
    speaker.start()
    client = qmp.QMPClient("test")
    kept = client.events.event_filter = Events(end)
    run_async(client.connect(ours), 60)
    connected.set()
    fake = types.SimpleNamespace(_monitor=client)
    run_async(VirtualMachine._await_silence(fake), 60)
    speaker.join(60)
    with pytest.raises(EOFError):
        run_async(client.disconnect(), 60)
    assert not client.events.history and client.events.empty()
    return kept


def test_a_flood_is_not_kept_and_ends_the_machine(monkeypatch):
    monkeypatch.setattr(events, "MOST_EVENTS", 1000)
    ends = []
    kept = heard([as_event("ACPI_DEVICE_OST", info={"slot": str(n)}) for n in range(1200)], lambda: ends.append(1))
    assert len(ends) == 200
    assert kept.why_down().is_proof


def test_answers_to_nothing_do_not_fill_the_log(caplog):
    heard([{"return": {}, "id": "nobody's"}] * 1000)
    assert len(caplog.records) < 10


def test_a_disk_s_error_ends_the_machine_and_its_first_reason_is_kept():
    ends = []
    said = [as_event(DISK_ERROR, reason=reason) for reason in ("No space left on device", "Input/output error")]
    kept = heard(said, lambda: ends.append(1))
    assert kept.first(DISK_ERROR)["reason"] == "No space left on device" and len(ends) == 2
    assert kept.why_down() is None


@pytest.mark.parametrize(
    ("event", "is_proof"),
    [
        (as_event(SHUTDOWN, guest=True, reason="guest-shutdown"), True),
        (as_event(SHUTDOWN, guest=True, reason="guest-reset"), False),
        (as_event(SHUTDOWN, guest=True, reason="guest-panic"), False),
        (as_event(SHUTDOWN, guest=False, reason="host-signal"), None),
        (as_event(DISK_ERROR, reason="File too large"), True),
    ],
)
def test_only_a_shutdown_or_a_full_disk_of_the_guest_s_proves_that_a_policy_ended_its_machine(event, is_proof):
    kept = Events(lambda: None)
    kept(event)
    assert getattr(kept.why_down(), "is_proof", None) is is_proof


@pytest.mark.parametrize("name", [SHUTDOWN, DISK_ERROR])
@pytest.mark.parametrize("data", [["reason"], "reason", {"guest": "yes", "reason": ["x" * 5_000_000]}, {"guest": True}])
def test_a_qemu_that_its_guest_broke_into_is_not_taken_at_its_word(name, data):
    kept = Events(lambda: None)
    kept({"event": name, "data": data})
    ended = kept.why_down()
    assert ended is None or not ended.is_proof
    assert len(f"{kept.first(name)}{ended}") < 500
