"""One region of Vertex AI: its services on one server, and a project that is ready for runs."""

from __future__ import annotations

from tests.fakes.grpc_service import GrpcServer
from tests.fakes.logging import Log
from tests.fakes.storage import FakeStorage
from tests.fakes.vertex.batch_predictions import BatchPredictions
from tests.fakes.vertex.deployed_models import DeployedModels
from tests.fakes.vertex.endpoints import EndpointService
from tests.fakes.vertex.jobs import JobService
from tests.fakes.vertex.metadata import MetadataService
from tests.fakes.vertex.models import ModelService
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.pipelines import PipelineService
from tests.fakes.vertex.prediction import PredictionService
from tests.fakes.vertex.schedules import ScheduleService
from tests.fakes.vertex.serving import Servers
from tests.fakes.vertex.tuning import TuningService
from tests.fakes.world import World

PACKAGE = "google.cloud.aiplatform.v1"


class Region:
    """Pipelines, schedules, jobs, models and endpoints of one region, on `server`."""

    def __init__(self, server: GrpcServer, world: World, name: str, log: Log, storage: FakeStorage) -> None:
        self.world = world
        self.name = name
        self.operations = Operations(world)
        self.servers = Servers(world, storage, name)
        self.jobs = JobService(world, name, log)
        self.searches = TuningService(world, name, log, self.jobs)
        self.metadata = MetadataService(world, name)
        self.pipelines = PipelineService(world, name, self.jobs, self.searches, self.metadata)
        self.models = ModelService(world, name, self.operations)
        self.schedules = ScheduleService(world, name, self.pipelines, self.operations)
        self.batches = BatchPredictions(world, name, self.models, self.servers, storage)
        self.endpoints = EndpointService(world, name, self.operations)
        deployed = DeployedModels(self.endpoints, self.operations, self.models, self.servers, log)
        self.predictions = PredictionService(self.endpoints)
        server.add(f"{PACKAGE}.EndpointService", {**self.endpoints.methods(), **deployed.methods()})
        server.add(f"{PACKAGE}.PredictionService", self.predictions.methods())
        jobs = {**self.jobs.methods(), **self.searches.methods(), **self.batches.methods()}
        server.add(f"{PACKAGE}.JobService", jobs)
        server.add(f"{PACKAGE}beta1.JobService", self.batches.beta_methods())
        server.add(f"{PACKAGE}.PipelineService", self.pipelines.methods())
        server.add(f"{PACKAGE}.ModelService", self.models.methods())
        server.add(f"{PACKAGE}.ScheduleService", self.schedules.methods())
        server.add(f"{PACKAGE}.MetadataService", self.metadata.methods())
        server.add("google.longrunning.Operations", self.operations.methods())

    def stop(self) -> None:
        """End the processes of all models, and what waits for them."""
        self.servers.close()
        self.batches.wait()
