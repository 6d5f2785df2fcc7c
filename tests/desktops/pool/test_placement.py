"""Which node gets which desktops, without Ray."""

import pytest

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.placement import Offer, Placement, check_cluster, place, read_offers
from arpo_verl.errors import ConfigError

A, B, C = (
    Offer(name, f"docker:10.0.0.{number}", units) for number, (name, units) in enumerate([("a", 4), ("b", 2), ("c", 2)])
)


def node(name, alive=True, **resources):
    named = {key.replace("__", ":"): value for key, value in resources.items()}
    return {"NodeID": name, "Alive": alive, "NodeManagerAddress": f"ip-{name}", "Resources": named}


def docker_config(**options):
    return EnvironmentConfig(provider="docker", screen_size=(1920, 1080), **options)


@pytest.mark.parametrize(
    ("slots", "offers", "used", "per_worker", "placed"),
    [
        (range(4), [A, B, C], {}, 1, [((0,), A), ((1,), A), ((2,), B), ((3,), C)]),
        (range(8), [A, B, C], {}, 3, [((0, 1, 4), A), ((5,), A), ((2, 6), B), ((3, 7), C)]),
        ([5, 6, 7], [A, B], {A: 3, B: 2}, 16, [((5,), A)]),
        ([5], [A], {A: 4}, 1, []),
        ([5], [], {}, 1, []),
        (range(3), None, {}, 2, [((0, 1), None), ((2,), None)]),
    ],
    ids=["in proportion", "so many a process", "in use", "all in use", "none", "Ray chooses"],
)
def test_desktops_are_shared_among_what_nodes_offer(slots, offers, used, per_worker, placed):
    assert place(slots, offers, used, per_worker) == [Placement(group, offer) for group, offer in placed]


def test_offers_are_read_from_live_nodes_by_prefix():
    nodes = [
        node("a", docker__10=3.0, CPU=4.0),
        node("b", alive=False, docker__11=3.0),
        node("c", CPU=8.0, GPU=1.0),
        node("d", docker__12=0.5),
    ]
    assert read_offers(nodes, "docker:") == [Offer("a", "docker:10", 3)]
    assert read_offers(nodes, "desktop:") == []
    assert read_offers(nodes, "") is None
    # A single node needs no resource of its own.
    assert read_offers([node("a", CPU=8.0)], "docker:") is None
    assert read_offers([node("a", CPU=8.0), node("b", alive=False)], "docker:") is None


def test_the_docker_provider_looks_for_its_convention_and_others_for_none():
    assert docker_config().host_prefix == "docker:"
    assert docker_config(host_resource="").host_prefix == ""
    assert EnvironmentConfig().host_prefix == ""
    assert EnvironmentConfig(host_resource="desktop:").host_prefix == "desktop:"


def test_a_cluster_with_too_few_units_is_refused_with_what_to_do():
    nodes = [node("a", docker__10=3.0), node("b", docker__11=2.0), node("c", CPU=8.0)]
    check_cluster(docker_config(num_desktops=5), nodes)
    with pytest.raises(ConfigError) as error:
        check_cluster(docker_config(num_desktops=6), nodes)
    for words in (
        "needs 6 units of docker:<ip>",
        "offers 5 (docker:10: 3, docker:11: 2; 1 nodes offer none)",
        """ray start ... --resources='{"docker:ip-a": 2}'""",
        "environment.host_resource=''",
    ):
        assert words in str(error.value)
    with pytest.raises(ConfigError, match=r"offers 0 \(none; 2 nodes offer none\)"):
        check_cluster(docker_config(num_desktops=1), [node("a", CPU=8.0), node("b", CPU=8.0)])


def test_a_cluster_without_room_for_the_workers_resources_is_refused():
    config = EnvironmentConfig(num_desktops=6, desktops_per_worker=2, worker_resources={"desktop_host": 2, "CPU": 0})
    check_cluster(config, [node("a", desktop_host=4.0), node("b", desktop_host=2.0)])
    with pytest.raises(ConfigError, match="needs room for 3 desktop workers.*has room for 2 on 2 nodes"):
        check_cluster(config, [node("a", desktop_host=3.0), node("b", desktop_host=3.0)])
