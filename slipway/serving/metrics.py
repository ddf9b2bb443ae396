"""The server's metrics, as Prometheus collects them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import prometheus_client as prometheus
from starlette.requests import Request
from starlette.responses import Response

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class ServerMetrics:
    """Counts requests, batches and loads of the model; `loads` has the label `outcome`."""

    def __init__(self) -> None:
        self._registry = prometheus.CollectorRegistry()
        counter = functools.partial(prometheus.Counter, registry=self._registry)
        histogram = functools.partial(prometheus.Histogram, registry=self._registry)
        self.loads = counter("slipway_model_loads", "Loaded models by outcome.", ["outcome"])
        self._requests = counter("slipway_requests", "Prediction requests by HTTP status.", ["status"])
        self._by_status: dict[int, Any] = {}  # the counters of `_requests`, which it takes longer to look up
        self._seconds = histogram("slipway_request_seconds", "Time to answer requests.", buckets=SECONDS)
        self._batch_sizes = histogram("slipway_batch_examples", "Examples per batch.", buckets=BATCH_SIZES)
        self._batch_seconds = histogram("slipway_batch_seconds", "Time to predict batches.", buckets=SECONDS)

    def add_request(self, status: int, seconds: float) -> None:
        """Count a prediction request that was answered."""
        self._seconds.observe(seconds)
        if (counter := self._by_status.get(status)) is None:
            counter = self._by_status[status] = self._requests.labels(str(status))
        counter.inc()

    def add_batch(self, examples: int, seconds: float) -> None:
        """Count a batch that the model has predicted."""
        self._batch_sizes.observe(examples)
        self._batch_seconds.observe(seconds)

    def watch_queue(self, waiting: Callable[[], int]) -> None:
        """Collect the examples that wait in the queue."""
        queue = prometheus.Gauge("slipway_queue_examples", "Examples that wait.", registry=self._registry)
        queue.set_function(waiting)

    async def answer(self, _request: Request) -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(prometheus.generate_latest(self._registry), media_type=prometheus.CONTENT_TYPE_LATEST)
