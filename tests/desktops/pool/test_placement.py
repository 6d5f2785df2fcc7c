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


def test_desktops_are_shared_in_proportion_to_what_nodes_offer():
    placements = place(range(4), [A, B, C], {}, desktops_per_worker=1)
    hosts = [placement.offer for placement in placements]
    assert [hosts.count(offer) for offer in (A, B, C)] == [2, 1, 1]
    assert sorted(slot for placement in placements for slot in placement.slots) == [0, 1, 2, 3]


def test_a_worker_process_serves_as_many_desktops_as_the_recipe_says():
    placements = place(range(8), [A, B, C], {}, desktops_per_worker=3)
    assert sorted((p.offer.node_id, len(p.slots)) for p in placements) == [("a", 1), ("a", 3), ("b", 2), ("c", 2)]


def test_units_in_use_are_not_given_twice_and_the_rest_waits():
    placements = place([5, 6, 7], [A, B], {A: 3, B: 2}, desktops_per_worker=16)
    assert placements == [Placement((5,), A)]
    assert place([5], [A], {A: 4}, desktops_per_worker=1) == []
    assert place([5], [], {}, desktops_per_worker=1) == []
    # Without offers, Ray chooses the node.
    assert place(range(3), None, {}, desktops_per_worker=2) == [Placement((0, 1)), Placement((2,))]


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
