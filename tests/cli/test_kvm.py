"""Whether KVM runs a guest, asked of a process of its own: where it does not, the call may do anything.

That a guest's program ends as it should is tested in an emulated machine whose kernel has KVM, beside the Docker
desktops: `tests/environments/docker/test_machine.py`.
"""

import pytest

from arpo_verl.cli.checks import kvm, machine


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Has the check run this program in the place of its own."""

    def put(program):
        file = tmp_path / "program.py"
        file.write_text(program)
        monkeypatch.setattr(kvm, "__file__", str(file))

    return put


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", ""),
        ("import sys; sys.exit('the kernel refuses')", "the kernel refuses"),
        ("import os; os.kill(os.getpid(), 9)", "running a guest ended by signal 9"),
        ("import time; time.sleep(600)", "did not end within 0.5 s"),
    ],
)
def test_whatever_the_guest_does_is_told(stand_in, monkeypatch, program, reason):
    monkeypatch.setattr(kvm, "TIMEOUT_S", 0.5 if "sleep" in program else 60.0)
    stand_in(program)
    assert reason in kvm.why_unusable() and bool(reason) == bool(kvm.why_unusable())


def test_a_device_that_opens_and_is_no_hypervisor_is_named_with_the_step_that_failed(monkeypatch):
    monkeypatch.setattr(kvm, "DEVICE", "/dev/null")
    with pytest.raises(OSError, match="KVM_CREATE_VM on /dev/null"):
        kvm.run_guest()


def test_a_device_that_opens_is_not_enough_for_doctor(monkeypatch, stand_in, tmp_path):
    monkeypatch.setattr(kvm, "DEVICE", str(tmp_path))
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    stand_in("import sys; sys.exit('no guest ran')")
    finding = machine._check_kvm()
    assert not finding.ok and finding.detail == "no guest ran" and "KVM:N" in finding.remedy
    stand_in("")
    assert machine._check_kvm().ok
    monkeypatch.setattr(kvm, "DEVICE", str(tmp_path / "none"))
    assert "is missing, or this user may not use it" in machine._check_kvm().detail


def test_other_processors_are_told_that_nothing_was_tried(monkeypatch, stand_in, tmp_path):
    monkeypatch.setattr(kvm, "DEVICE", str(tmp_path))
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    stand_in("import sys; sys.exit('never run')")
    finding = machine._check_kvm()
    assert finding.ok and "test a guest only on x86_64, and this is aarch64" in finding.detail
