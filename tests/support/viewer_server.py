"""The viewer's server in a thread of the test's own process."""

import socket
import threading
from contextlib import contextmanager

from arpo_verl.tools.viewer.server import build_server


@contextmanager
def served(run, token=None):
    """The address of a server of `run`, while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = build_server(run, token=token, port=port)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}/"
        finally:
            server.should_exit = True
            thread.join()
