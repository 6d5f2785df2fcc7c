from arpo_verl.replay.desktops import DesktopMetrics


def test_without_ray_or_an_environment_section_there_is_nothing_to_read():
    assert DesktopMetrics(None).read() == {}
    assert DesktopMetrics({"provider": "fake", "num_desktops": 1}).read() == {}
