"""What users of LitServe write, for `benchmarks.serving`: `python -m benchmarks.serving_litserve MODEL_FOLDER PORT`."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import litserve

from benchmarks.serving import handler


class Api(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, _device: str) -> None:
        self.answer = handler(Path(sys.argv[1]))

    def decode_request(self, request: dict[str, list[dict[str, str]]]) -> bytes:
        return base64.b64decode(request["instances"][0]["b64"])

    def predict(self, images: list[bytes]) -> list[dict[str, object]]:
        return self.answer(images)

    def encode_response(self, output: dict[str, object]) -> dict[str, object]:
        return {"predictions": [output]}


if __name__ == "__main__":
    api = Api(max_batch_size=64, batch_timeout=0.002)
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(port=int(sys.argv[2]), log_level="error", generate_client_file=False)
