from arpo_verl.plugin.job_desktops import JobDesktops


def test_without_ray_or_an_environment_section_there_is_nothing_to_make_or_read():
    assert JobDesktops(None).read() == {}
    assert JobDesktops({"provider": "fake", "num_desktops": 1}).read() == {}
