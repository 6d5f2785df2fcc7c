"""A real Docker engine of the tests' own, with an image of OSWorld's name whose guest is the embedded desktop's."""

import pytest
from support.desktop_harness import eventually
from support.docker_engine import docker_engine, why_not
from support.docker_image import load_image, write_tree

docker = pytest.importorskip("docker")


@pytest.fixture(scope="session")
def tree(tmp_path_factory):
    """The image's root, as an archive. Skips where no engine can be started."""
    reason = why_not()
    if reason:
        pytest.skip(f"no Docker engine can be started here: {reason}")
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    write_tree(archive)
    yield archive
    archive.unlink()


@pytest.fixture(scope="module")
def engine(tree):
    """The engine, which `DOCKER_HOST` names; nothing of it is left after the module's tests."""
    with docker_engine() as engine:
        client = docker.from_env()
        load_image(client, tree)
        engine.client = client
        yield engine
        left = client.containers.list(all=True, ignore_removed=True)
        client.close()
        eventually(lambda: not engine.processes())  # no shim, and no proxy that holds a port
    assert left == [], "containers that a test left"


@pytest.fixture(scope="session")
def vm(tmp_path_factory):
    """Stands for the machine's disk: the image's own guest runs where it is none."""
    file = tmp_path_factory.mktemp("vm") / "Ubuntu.qcow2"
    file.write_bytes(b"")
    return file
