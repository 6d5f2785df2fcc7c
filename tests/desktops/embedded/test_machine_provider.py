"""What a class of machines gives OSWorld's client, beside what it says itself."""

import pytest

from arpo_verl import ConfigError, GuestAddress, MachineProvider


class Machine(MachineProvider):
    def __init__(self, host="10.0.0.7"):
        self.host, self.calls = host, []

    def start(self):
        self.calls.append("start")

    def address(self):
        return GuestAddress(self.host, vlc_port=8081)

    def stop(self):
        self.calls.append("stop")


def test_between_two_episodes_the_machine_is_thrown_away_and_another_one_started():
    machine = Machine()
    machine.start_emulator("/vm", True, "Ubuntu")
    assert machine.revert_to_snapshot("/vm", "init_state") == "/vm"
    machine.start_emulator("/vm", True, "Ubuntu")
    machine.stop_emulator("/vm")
    assert machine.calls == ["start", "stop", "start", "stop"]
    assert (machine.why_gone(), machine.why_ended()) == ("", "")


def test_its_address_is_told_in_the_clients_words():
    assert Machine().get_ip_address() == "10.0.0.7:5000:9222:0:8081"
    assert Machine("localhost").get_ip_address("/vm") == "localhost:5000:9222:0:8081"
    assert GuestAddress.forwarded("127.0.0.1", {8080: 3, 5000: 1, 9222: 2}) == ("127.0.0.1", 1, 2, 3)


@pytest.mark.parametrize("host", ["desktop.example.com", "fd00::1", ""])
def test_a_host_that_is_no_address_is_refused(host):
    with pytest.raises(ConfigError, match="Machine.address must give an IPv4 address or localhost"):
        Machine(host).get_ip_address()
