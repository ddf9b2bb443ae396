"""Permissions of the roles that Slipway grants or requires, as far as the fakes check them."""

from __future__ import annotations

PERMISSIONS: dict[str, frozenset[str]] = {
    "roles/aiplatform.user": frozenset(
        {
            "aiplatform.pipelineJobs.create",
            "aiplatform.pipelineJobs.get",
            "aiplatform.pipelineJobs.list",
            "aiplatform.pipelineJobs.cancel",
            "aiplatform.customJobs.create",
            "aiplatform.customJobs.get",
            "aiplatform.customJobs.list",
            "aiplatform.customJobs.cancel",
            "aiplatform.hyperparameterTuningJobs.create",
            "aiplatform.hyperparameterTuningJobs.get",
            "aiplatform.hyperparameterTuningJobs.cancel",
            "aiplatform.batchPredictionJobs.create",
            "aiplatform.batchPredictionJobs.get",
            "aiplatform.batchPredictionJobs.list",
            "aiplatform.batchPredictionJobs.cancel",
            "aiplatform.schedules.create",
            "aiplatform.schedules.get",
            "aiplatform.schedules.list",
            "aiplatform.schedules.update",
            "aiplatform.schedules.delete",
            "aiplatform.models.upload",
            "aiplatform.models.get",
            "aiplatform.models.list",
            "aiplatform.models.update",
            "aiplatform.contexts.create",
            *(
                f"aiplatform.endpoints.{verb}"
                for verb in ("create", "get", "list", "update", "delete", "deploy", "undeploy", "predict")
            ),
            "resourcemanager.projects.get",
        }
    ),
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs", "iam.serviceAccounts.get"}),
    "roles/storage.objectCreator": frozenset({"storage.objects.create"}),
    "roles/storage.objectUser": frozenset(
        {f"storage.objects.{verb}" for verb in ("get", "list", "create", "update", "delete")}
    ),
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
    "roles/storage.admin": frozenset(
        {
            "storage.buckets.get",
            "storage.buckets.list",
            "storage.buckets.create",
            "storage.buckets.update",
            "storage.buckets.getIamPolicy",
            "storage.buckets.setIamPolicy",
        }
    ),
    "roles/artifactregistry.reader": frozenset(
        {
            "artifactregistry.repositories.get",
            "artifactregistry.repositories.downloadArtifacts",
            "artifactregistry.dockerimages.list",
        }
    ),
    "roles/artifactregistry.writer": frozenset(
        {
            "artifactregistry.repositories.get",
            "artifactregistry.repositories.downloadArtifacts",
            "artifactregistry.repositories.uploadArtifacts",
        }
    ),
    "roles/bigquery.dataViewer": frozenset(
        {*(f"bigquery.tables.{verb}" for verb in ("get", "getData", "list")), "bigquery.datasets.get"}
    ),
    "roles/bigquery.dataEditor": frozenset(
        f"bigquery.tables.{verb}" for verb in ("create", "get", "getData", "list", "updateData")
    ),
    "roles/bigquery.jobUser": frozenset({"bigquery.jobs.create"}),
    "roles/bigquery.readSessionUser": frozenset({f"bigquery.readsessions.{verb}" for verb in ("create", "getData")}),
    "roles/serviceusage.serviceUsageViewer": frozenset({"serviceusage.services.get", "serviceusage.quotas.get"}),
    "roles/serviceusage.serviceUsageConsumer": frozenset({"serviceusage.services.use"}),
    "roles/pubsub.publisher": frozenset({"pubsub.topics.publish"}),
    "roles/secretmanager.secretAccessor": frozenset({"secretmanager.versions.access"}),
    "roles/logging.viewer": frozenset({"logging.logEntries.list"}),
    "roles/logging.logWriter": frozenset({"logging.logEntries.create"}),
    "roles/dataflow.developer": frozenset(
        {
            *(f"dataflow.jobs.{verb}" for verb in ("cancel", "create", "get", "list")),
            "dataflow.messages.list",
            "dataflow.metrics.get",
        }
    ),
    "roles/dataflow.worker": frozenset({"dataflow.workItems.lease", "dataflow.workItems.update"}),
    "roles/dataflow.serviceAgent": frozenset({"compute.instances.create", "iam.serviceAccounts.actAs"}),
    "roles/tpu.admin": frozenset(
        {
            *(f"tpu.nodes.{verb}" for verb in ("create", "delete", "get", "list", "reset")),
            *(f"tpu.{kind}.{verb}" for kind in ("acceleratortypes", "runtimeversions") for verb in ("get", "list")),
            "tpu.operations.get",
        }
    ),
    "roles/compute.viewer": frozenset({"compute.machineTypes.get"}),
    "roles/cloudkms.cryptoKeyEncrypterDecrypter": frozenset(
        {"cloudkms.cryptoKeyVersions.useToDecrypt", "cloudkms.cryptoKeyVersions.useToEncrypt"}
    ),
    "roles/cloudbuild.builds.editor": frozenset(
        {f"cloudbuild.builds.{verb}" for verb in ("create", "get", "list", "update")}
    ),
}
