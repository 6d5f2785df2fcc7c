"""An OpenAI-compatible server around our own rollout engine: what a policy is when it is spoken to over HTTP.

    python benchmarks/model_server.py FOLDER PORT

It knows `GET /v1/models` and `POST /v1/chat/completions` with image messages, as much as an evaluation asks for.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

from PIL import Image

from arpo_verl.agent.harness.chat_completions import ChatMessage, image_bytes, read_request, write_answer
from arpo_verl.engines.cpu.lone import load_engine

NAME = "policy"
END_OF_TURN = "<|im_end|>"
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty", "max_tokens", "seed")


class ModelServer(ThreadingHTTPServer):
    """Serves on a free port of this machine, or on `port`. Runs in `serve_forever`; the engine in a loop of its own."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.engine = load_engine(folder)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the API answers to a request for a reply."""
        processor = self.engine.processor
        read = read_request(body)
        urls = [url for message in read.messages for url in message.images]
        images = [Image.open(io.BytesIO(image_bytes(url))).convert("RGB") for url in urls]
        messages = [message.shown() for message in read.messages]
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompt_ids = processor(text=[text], images=images or None, return_tensors="pt")["input_ids"][0].tolist()
        params = {name: body[name] for name in SAMPLING if name in body}
        call = self.engine.server.generate(prompt_ids, params, uuid4().hex, image_data=images)
        output = asyncio.run_coroutine_threadsafe(call, self.loop).result()
        tokenizer = self.engine.tokenizer
        ended = output.token_ids[-1] == tokenizer.convert_tokens_to_ids(END_OF_TURN)
        written = output.token_ids[: -1 if ended else None]
        reply = tokenizer.decode(written, skip_special_tokens=body.get("skip_special_tokens", True))
        said = ChatMessage("assistant", reply)
        return write_answer(NAME, said, "stop" if ended else "length", len(prompt_ids), len(output.token_ids))


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_GET(self) -> None:
        model = {"id": NAME, "owned_by": "arpo_verl", "max_model_len": self.server.engine.context}
        self._answer({"data": [model]})

    def do_POST(self) -> None:
        self._answer(self.server.complete(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

    def _answer(self, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Be still."""


if __name__ == "__main__":
    ModelServer(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
