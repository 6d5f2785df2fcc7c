"""An HTTP server on this host's loopback, in threads of the test's process."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Gives each request and its body to the server's `respond`."""

    def do_GET(self):
        self.server.respond(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    do_POST = do_DELETE = do_GET

    def answer(self, status, content=b"", **headers):
        """Send an answer; in a header's name `_` stands for a dash."""
        self.send_response(status)
        given = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        for name, value in {"Content-Length": str(len(content)), **given}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """Answers by `respond(handler, body)` from now on until it is closed."""

    daemon_threads = True

    def __init__(self, respond, address=("127.0.0.1", 0)):
        super().__init__(address, Handler)
        self.respond = respond
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.shutdown()
        self.server_close()
