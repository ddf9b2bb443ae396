"""A model server without a model, which starts in a moment and misbehaves on request: python stand_in.py [OPTION…].

A prediction repeats its instance and names who predicted: {"instance": …, "by": "the id of the deployed model"}.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREDICTING = "the stand-in predicts"  # a prediction that takes time has begun


def main() -> None:
    options = _options()
    if options.exit is not None:
        print("the stand-in ends", flush=True)
        sys.exit(options.exit)
    began = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1

        def do_GET(self) -> None:
            ready = not options.never_healthy and time.monotonic() - began >= options.start_seconds
            self._answer(200 if ready and self.path == os.environ["AIP_HEALTH_ROUTE"] else 503, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if options.seconds:
                print(PREDICTING, flush=True)
                time.sleep(options.seconds)
            if self.path != os.environ["AIP_PREDICT_ROUTE"]:
                self._answer(404, b"{}")
            elif random.random() < options.failing:
                self._answer(options.status, b'{"error": {"message": "the stand-in fails"}}')
            elif options.raw:
                self._answer(200, body)
            else:
                self._answer(200, _predictions(body, options.bytes))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = False  # those that answer end first
        request_queue_size = 128

    server = Server(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), Handler)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(options.say, flush=True)
    server.serve_forever(poll_interval=0.05)
    server.server_close()  # waits for the requests in progress


def _predictions(body: bytes, extra: int) -> bytes:
    instances = json.loads(body)["instances"]
    who = os.environ["AIP_DEPLOYED_MODEL_ID"]
    return json.dumps(
        {"predictions": [{"instance": one, "by": who, "extra": "x" * extra} for one in instances]}
    ).encode()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.0, help="time of a prediction")
    parser.add_argument("--failing", type=float, default=0.0, help="fraction of the predictions that fail, 0 to 1")
    parser.add_argument("--status", type=int, default=500, help="their HTTP status")
    parser.add_argument("--start-seconds", type=float, default=0.0, help="time until it is healthy")
    parser.add_argument("--never-healthy", action="store_true")
    parser.add_argument("--exit", type=int, help="end at once, with this status")
    parser.add_argument("--bytes", type=int, default=0, help="more bytes in each prediction")
    parser.add_argument("--say", default="the stand-in listens", help="what it prints when it starts")
    parser.add_argument("--raw", action="store_true", help="answer the body as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
