"""A small HTTP server in a thread that answers what a function says: for formats that a test writes out itself."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(function):
    """`function(path, body)` gives (status, list of bytes); the pieces are sent one by one. Yields URL and requests."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body):
            asked.append((self.path, body, dict(self.headers)))
            status, pieces = function(self.path, body)
            self.send_response(status)
            kind = "text/event-stream" if pieces and pieces[0].startswith(b"data:") else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in [*pieces, b""]:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.wfile.flush()

        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def sse(*events):
    """Events as an OpenAI-compatible server streams them."""
    return [*(f"data: {json.dumps(event)}\n\n".encode() for event in events), b"data: [DONE]\n\n"]


def models(*names, **more):
    return [json.dumps({"object": "list", "data": [{"id": name, **more} for name in names]}).encode()]
