"""Sentences of Google's services, of libraries and of interpreters about failures, each with its source.

`reported` is a public issue, `recorded` a recorded answer, `read` a page or a library's source. Names of projects and
accounts are changed.
"""

DOCS = "docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning"
ERRORS = f"read: {DOCS}/training/understanding-training-service, common errors"
SDK = "read: google-cloud-aiplatform, also raised in a custom program that uses it"
# Of flexible start, which Vertex AI's jobs use, too.
RESIZE = "read: Google's autoscaler of GKE, errors of resize requests"
# The known error, where the sentence was seen, and the sentence.
SERVICES = (
    (
        "accelerator",
        "reported: GoogleCloudPlatform/vertex-ai-samples#213",
        'Accelerator "NVIDIA_TESLA_K80" is not supported for machine type "n1-standard-4"',
    ),
    (
        "accelerator count",
        "reported: prefect-archive/prefect-gcp#175",
        "List of found errors: 1.Field: job_spec.worker_pool_specs[0].machine_spec.accelerator_type; Message: Both "
        "`accelerator_type` and `accelerator_count` should be specified or none.",
    ),
    (
        "machine type",
        "reported: a note of 2026-04 in the public repository Effort-AIGI-Detection-DtectVision, HANDOFF.md",
        'Machine type "a2-highgpu-1g" is not supported.',
    ),
    (
        "chief",
        SDK,
        "Chief spec replica count cannot be greater than 1.",
    ),
    (
        "quota",
        "reported: google-deepmind/xmanager#29",
        "The following quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_tpu_v2",
    ),
    (
        "batch quota",
        f"read: {DOCS}/troubleshooting",
        "Quota exhausted. Please reach out to ai-platform-unified-feedback@google.com for batch prediction "
        "quota increase.",
    ),
    (
        "prediction request",
        "recorded: googleapis/python-aiplatform#2666",
        "('Post request fails. Cannot get predictions. Error: Exceeded retries: Non-OK result 422 "
        '({"detail":"x"}) from server, retry=3, ellapsed=0.03s.\', 1)',
    ),
    (
        "capacity",
        "reported: openreview/openreview-expertise#401",
        "Resources are insufficient in region: us-central1. Please try a different region or use a different "
        "accelerator.",
    ),
    (
        "Spot capacity",
        "read: cloud.google.com/vertex-ai/docs/predictions/use-spot-vms, which has the error's name only",
        "When Spot VMs are preempted, the prediction job fails with a STOCKOUT error",
    ),
    (
        "TPU capacity",
        "reported: skypilot-org/skypilot#4579",
        "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x1]",
    ),
    (
        "serving capacity",
        "reported: GoogleCloudPlatform/PerfKitBenchmarker, vertex_ai_test.py",
        "Machine type temporarily unavailable, please deploy with a different machine type or retry.",
    ),
    (
        "internal error",
        f"{ERRORS}, section on internal errors",
        "Internal error occurred for the current attempt.",
    ),
    (
        "act as",
        "reported: GoogleCloudPlatform/vertex-pipelines-end-to-end-samples, troubleshooting",
        "You do not have permission to act as service_account: runner@p.iam.gserviceaccount.com. (or it may "
        "not exist).",
    ),
    (
        "act as",
        "reported: hashicorp/terraform-provider-google#7126",
        "Current user cannot act as service account runner@p.iam.gserviceaccount.com.",
    ),
    (
        "act as",
        "reported: dora-team/fourkeys#459",
        "googleapi: Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account "
        "runner@p.iam.gserviceaccount.com (or it may not exist).",
    ),
    (
        "bucket rights",
        "reported: statmike/vertex-ai-mlops#60",
        "Failed to create pipeline job. Error: Service account `12-compute@developer.gserviceaccount.com` "
        "does not have `[storage.objects.get, storage.objects.create]` IAM permission(s) to the bucket "
        "`runs`.",
    ),
    (
        "image pull",
        "reported: zenml-io/zenml#3766",
        "Failed to create pipeline job. Error: Vertex AI Service Agent "
        "service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have permission to access Artifact "
        "Registry repository projects/p/locations/europe-west4/repositories/r",
    ),
    (
        "image pull",
        f"read: {DOCS}/training/neural-architecture-search",
        "Agent Platform Service Agent service-12@gcp-sa-aiplatform-cc.iam.gserviceaccount.com does not have "
        "permission to access Artifact Registry repository "
        "projects/my-project/locations/my-region/repositories/my-repo",
    ),
    (
        "TPU account",
        "reported: google-research/text-to-text-transfer-transformer#1003",
        "service-12@cloud-tpu.iam.gserviceaccount.com does not have storage.objects.list access to the "
        "Google Cloud Storage bucket.",
    ),
    (
        "Cloud Build logs",
        "reported: cert-manager/cert-manager#8851",
        "if 'build.service_account' is specified, the build must either (a) specify 'build.logs_bucket', (b) "
        "use the REGIONAL_USER_OWNED_BUCKET build.options.default_logs_bucket_behavior option, or (c) use "
        "either CLOUD_LOGGING_ONLY / NONE logging options",
    ),
    (
        "build region",
        "reported: google-github-actions/deploy-cloudrun#480",
        "failed precondition: due to quota restrictions, cannot run builds in this region. Please contact support",
    ),
    (
        "build region",
        "reported: https://superuser.com/questions/1716674",
        "FAILED_PRECONDITION: generic::failed_precondition: no concurrent builds quota available to create builds.",
    ),
    (
        "Dataflow jobs",
        "reported: apache/beam#34381",
        "The workflow could not be created. Causes: (8ac844dc41db82af): Dataflow quota error for jobs-per-project "
        "quota. Project p is running 299 jobs. Please check the quota usage via GCP Console.",
    ),
    (
        "Dataflow workers",
        "reported: googlecodelabs/feedback#967",
        "Workflow failed. Causes: Error: Message: Exceeded limit 'QUOTA_FOR_INSTANCES' on resource "
        "'dataflow-import-bus-data-162142127-05190347-iwvy-harness'. Limit: 8.0 HTTP Code: 403",
    ),
    (
        "encryption key",
        "reported: hashicorp/terraform-provider-google#11819",
        "Provided CryptoKey projects/p/locations/l/keyRings/r/cryptoKeys/k cannot be used in Vertex AI service.",
    ),
    (
        "memory",
        "reported: google/agents-cli#43 and nine more, 2025-11 to 2026-07",
        "Replicas low on memory: workerpool0. Specify a machine with larger memory and try again.",
    ),
    (
        "memory",
        f"{ERRORS}; seen in no report",
        "The replica workerpool0-0 ran out of memory and exited with a non-zero status of 137.",
    ),
    (
        "memory",
        "reported: tensorflow/models#5591, AI Platform",
        "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL).",
    ),
    (
        "model server",
        "reported: GoogleCloudPlatform/vertex-ai-samples#3485",
        "Model server exited unexpectedly. Please use recommended machine spec.",
    ),
    (
        "model server",
        "read: https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/"
        "get-batch-predictions",
        "Error: model server never became ready. Please validate that your model file or container configuration are "
        "valid.",
    ),
    (
        "try again",
        f"{ERRORS}: the code 134 asks for another try",
        "The replica workerpool1-0 exited with a non-zero status of 134(SIGABRT). Termination reason: Error.",
    ),
    (
        "pipeline root",
        "read: google-cloud-storage, Blob.from_uri",
        "URI pattern must be gs://bucket/object",
    ),
    (
        "first job",
        "reported: GoogleCloudPlatform/generative-ai#1308",
        "Service agents are being provisioned "
        "(https://cloud.google.com/vertex-ai/docs/general/access-control#service-agents). Service agents are "
        "needed to read the Cloud Storage file provided. So please try again in a few minutes.",
    ),
    (
        "API",
        "recorded: k8s-config-connector, devicestreamingsession-minimal",
        "Device Streaming API has not been used in project p before or it is disabled.",
    ),
    (
        "TPU quota",
        "reported: marin-community/marin#1612",
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5.",
    ),
    (
        "TPU quota",
        "reported: marin-community/marin#87",
        "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2",
    ),
    (
        "quota",
        "reported: GoogleCloudPlatform/vertex-ai-samples#3479",
        "com.google.cloud.ai.platform.common.errors.AiPlatformException: code=RESOURCE_EXHAUSTED, message=The "
        "following "
        "quota metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_cpus, cause=null; "
        "Failed to "
        "create custom job for the task.",
    ),
    (
        "quota",
        "reported: GoogleCloudPlatform/stable-diffusion-on-gcp#12",
        "The following quota metrics exceed quota limits: "
        "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus",
    ),
    (
        "quota",
        "reported: a public notebook with Ray on Vertex AI, and seven more public texts",
        "The following quotas are exceeded: CustomModelTrainingT4GPUsPerProjectPerRegion",
    ),
    (
        "capacity",
        RESIZE,
        "Zone does not currently have sufficient capacity for the requested resources",
    ),
    (
        "Compute Engine quota",
        "reported: fastai/course-v3#165",
        "Quota 'GPUS_ALL_REGIONS' exceeded. Limit: 0.0 globally.",
    ),
    (
        "Compute Engine quota",
        RESIZE,
        "Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 16.0 in region us-central1.",
    ),
    (
        "waiting",
        RESIZE,
        "Resize request could not provision queued instances in the allocated time.",
    ),
    (
        "reservation",
        RESIZE,
        "Specified reservation abcd does not exist",
    ),
    (
        "reservation",
        RESIZE,
        "Specified reservation xyz does not have available resources for the request.",
    ),
    (
        "reservation",
        RESIZE,
        "No available resources in specified reservations",
    ),
    (
        "reservation",
        RESIZE,
        "Cannot use reservation, it requires reservation to be in READY state",
    ),
    (
        "capacity",
        "reported: scylladb/scylla-cluster-tests#12477",
        "503 SERVICE UNAVAILABLE ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS: The zone "
        "'projects/sct-project-1/zones/us-east1-c' does not have enough resources available to fulfill the request.  "
        "'(resource type:compute)'.",
    ),
    (
        "capacity",
        RESIZE,
        'There are currently not enough resources available to fulfill the request. Reason: "resource_availability", '
        'VMType: "a2-ultragpu-1g"',
    ),
    (
        "TPU capacity",
        "reported: GoogleCloudPlatform/magic-modules#7297",
        'Error code 8, message: There is no more capacity in the zone "us-central1-b"; you can try in another '
        "zone where "
        "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    ),
    (
        "addresses",
        RESIZE,
        "Instance 'gke-1' creation failed: IP space of 'projects/p/regions/us-central1/subnetworks/s' is exhausted.",
    ),
    (
        "perimeter",
        "reported: googleapis/python-aiplatform#5132",
        "Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: "
        "HICD57WFowE88NokFnbyJFBiwe7",
    ),
    (
        "perimeter",
        "read: GoogleCloudPlatform/magic-modules, the errors that its tests ignore",
        "Error 403: Request is prohibited by organization's policy, vpcServiceControlsUniqueIdentifier",
    ),
    (
        "domain restricted sharing",
        "reported: terraform-google-modules/terraform-example-foundation#1454",
        "One or more users named in the policy do not belong to a permitted customer, perhaps due to an organization "
        "policy.",
    ),
    (
        "domain restricted sharing",
        "reported: openshift/openshift-docs#49083, the constraint's name",
        "constraints/iam.allowedPolicyMemberDomains",
    ),
    (
        "resource locations",
        "reported: GoogleCloudDataproc/spark-bigquery-connector#231",
        "'us' violates constraint 'constraints/gcp.resourceLocations'",
    ),
    (
        "service account keys",
        "reported: google/create-service-account#21",
        "FAILED_PRECONDITION: Key creation is not allowed on this service account.",
    ),
    (
        "service account keys",
        "reported: GaloyMoney/galoy-infra#242, the violation",
        "type: constraints/iam.disableServiceAccountKeyCreation",
    ),
    (
        "service accounts",
        "read: docs.cloud.google.com/resource-manager/docs/organization-policy/restricting-service-accounts",
        "Service account creation is not allowed on this project.",
    ),
    (
        "service accounts",
        "read: docs.cloud.google.com/resource-manager/docs/organization-policy/restricting-service-accounts, the "
        "violation",
        "type: constraints/iam.disableServiceAccountCreation",
    ),
    (
        "external addresses",
        "read: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/gce",
        "Instance 'myinst_101' creation failed: Constraint constraints/compute.vmExternalIpAccess violated for project "
        "1234567890.",
    ),
    (
        "organization policy",
        "reported: GAM-team/GAM#1678",
        "Constraint `constraints/iam.disableServiceAccountKeyUpload` violated for service account "
        "projects/p/serviceAccounts/a@p.iam.gserviceaccount.com attempting to upload public key.",
    ),
    (
        "organization policy",
        "read: docs.cloud.google.com/organization-policy/restrict-resource-usage",
        "Request is disallowed by organization's constraints/gcp.restrictServiceUsage constraint for "
        "'projects/123456789' attempting to use service 'storage.googleapis.com'.",
    ),
    (
        "default accounts",
        "read: google-cloud-storage, of the account that organizations leave without roles",
        "123456789012-compute@developer.gserviceaccount.com does not have storage.objects.get access to the "
        "Google Cloud "
        "Storage object.",
    ),
    (
        "act as",
        "reported: kohei321dev/spot-diggz#164",
        "caller does not have permission to act as service account 109095503163182759798",
    ),
    (
        "act as",
        "read: docs.cloud.google.com/iam/docs/service-accounts-actas",
        "Permission 'iam.serviceAccounts.actAs' denied on service account runner@p.iam.gserviceaccount.com (or it may "
        "not exist).",
    ),
    (
        "image",
        "reported: GoogleCloudPlatform/marketing-analytics-jumpstart#82",
        "The image us-west1-docker.pkg.dev/p-1/repo/trainer:dev does not exist.",
    ),
    (
        "bucket metadata",
        "read: google-cloud-storage, Client.get_bucket",
        "403 GET https://storage.googleapis.com/storage/v1/b/data-1?projection=noAcl&prettyPrint=false: "
        "runner@p-1.iam.gserviceaccount.com does not have storage.buckets.get access to the Google Cloud Storage "
        "bucket. "
        "Permission 'storage.buckets.get' denied on resource (or it may not exist).",
    ),
    (
        "storage",
        "read: google-cloud-storage, Blob.download_as_bytes",
        "403 GET https://storage.googleapis.com/download/storage/v1/b/data-1/o/x.csv?alt=media: "
        "runner@p-1.iam.gserviceaccount.com does not have storage.objects.get access to the Google Cloud Storage "
        "object. "
        "Permission 'storage.objects.get' denied on resource (or it may not exist).",
    ),
    (
        "permission",
        "reported: GoogleCloudPlatform/training-data-analyst#1570",
        "403 Permission 'aiplatform.tensorboards.get' denied on resource "
        "'//aiplatform.googleapis.com/projects/p-1/locations/us-central1/tensorboards/123' (or it may not exist).",
    ),
    (
        "permission",
        "reported: googleapis/python-aiplatform#1880",
        "Failed to create pipeline job. Error: Permission 'aiplatform.metadataStores.get' denied on resource "
        "'//aiplatform.googleapis.com/projects/p/locations/l/metadataStores/default' (or it may not exist)..",
    ),
    (
        "artifacts",
        "reported: kubeflow/kubeflow#7513",
        "com.google.cloud.ai.platform.common.errors.AiPlatformException: code=INVALID_ARGUMENT, message=Maximum number "
        "of artifacts exceeded. Maximum allowed: 100, requested: 270, cause=null",
    ),
    (
        "internal error",
        "reported: GoogleCloudPlatform/t5x-on-vertex-ai#2",
        "Internal error occurred for the current attempt.",
    ),
    (
        "killed",
        f"{ERRORS}: 137 is 128 and the signal SIGKILL",
        "The replica workerpool0-0 exited with a non-zero status of 137. To find out more about why your job exited "
        "please check the logs: https://x",
    ),
    (
        "killed",
        "reported: tensorflow/tensorflow#18984, AI Platform, with the signal's number",
        "The replica worker 0 exited with a non-zero status of 9(SIGKILL).",
    ),
    (
        "no command",
        f"{ERRORS}: 127 is a shell's status for a command that is not found",
        "The replica workerpool0-0 exited with a non-zero status of 127.",
    ),
    (
        "no command",
        "reported: GoogleCloudPlatform/vertex-ai-samples#1898",
        "The replica workerpool0-0 exited with a non-zero status of 128. Termination reason: StartError. \n "
        "Termination "
        "log message: failed to create containerd task: failed to create shim task: OCI runtime create failed",
    ),
    (
        "capacity",
        "reported: kubernetes/k8s.io#9834",
        "A n1-standard-4 VM instance with 1 nvidia-tesla-t4 accelerator(s) is currently unavailable in the "
        "us-central1-b "
        "zone. Consider trying your request in the us-central1-a, us-central1-f zone(s)",
    ),
    (
        "tenant project",
        "reported: GoogleCloudPlatform/vertex-ai-samples#174",
        "403 POST https://bigquery.googleapis.com/bigquery/v2/projects/vf64cb108e9b1b4cfp-tp/jobs?prettyPrint=false: "
        "Access Denied: Project vf64cb108e9b1b4cfp-tp: User does not have bigquery.jobs.create permission in project "
        "vf64cb108e9b1b4cfp-tp.",
    ),
    (
        "project",
        "reported: GoogleCloudPlatform/training-data-analyst#1811",
        "403 Permission denied on resource project My First Project. [links {",
    ),
    (
        "network",
        "reported: GoogleCloudPlatform/vertex-ai-samples#2611",
        "Error NETWORK_NOT_PEERED",
    ),
    (
        "instruction",
        f"{ERRORS}: 132 is 128 and the signal SIGILL",
        "The replica workerpool0-0 exited with a non-zero status of 132(SIGILL).",
    ),
    (
        "bus error",
        f"{ERRORS}: 135 is 128 and the signal SIGBUS",
        "The replica workerpool0-0 exited with a non-zero status of 135(SIGBUS).",
    ),
    (
        "segmentation fault",
        f"{ERRORS}: 139 is 128 and the signal SIGSEGV",
        "The replica workerpool0-0 exited with a non-zero status of 139(SIGSEGV).",
    ),
)

# The same of what ends a program: the text of its last exception, from the class on, or a line of its log.
PROGRAMS = (
    (
        "CUDA memory",
        "reported: databrickslabs/dolly#25",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.54 GiB (GPU 1; 39.59 GiB total "
        "capacity; "
        "22.65 GiB already allocated; 15.92 GiB free; 22.66 GiB reserved in total by PyTorch)",
    ),
    (
        "CUDA memory",
        "read: pytorch, c10/cuda/CUDACachingAllocator.cpp",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "14.58 GiB "
        "of which 1.12 GiB is free. Including non-PyTorch memory, this process has 13.45 GiB memory in use. Of the "
        "allocated memory 12.97 GiB is allocated by PyTorch",
    ),
    (
        "CUDA memory",
        "read: CUDA runtime, cudaErrorMemoryAllocation",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some "
        "other API "
        "call, so the stacktrace below might be incorrect.",
    ),
    (
        "CUDA memory",
        "read: cuBLAS, cublasStatus_t, as PyTorch reports it",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ),
    (
        "CUDA memory",
        "read: cuBLAS, cublasStatus_t, as PyTorch reports a handle for which no memory is left",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ),
    (
        "TensorFlow memory",
        "read: tensorflow, core/common_runtime/gpu/gpu_util.cc",
        "tensorflow.python.framework.errors_impl.InternalError: Failed copying input tensor from "
        "/job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 in order to run "
        "_EagerConst: Dst tensor is not initialized.",
    ),
    (
        "XLA memory",
        "read: openxla/xla, docs/errors/error_1000.md",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of "
        "memory in "
        "memory space hbm. Used 49.34G of 32.00G hbm. Exceeded hbm capacity by 17.34G.",
    ),
    (
        "XLA memory",
        "read: openxla/xla, xla/stream_executor/integrations/tf_allocator_adapter",
        "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    ),
    (
        "XLA memory",
        "read: openxla/xla, docs/errors, of the TPU's runtime",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 2.25G. "
        "That was not possible. There are 1.92G free.; (0x0x0_HBM0)",
    ),
    (
        "XLA memory",
        "read: openxla/xla, xla/stream_executor/device_memory_allocator.h",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB "
        "(2147483648B) "
        "on device ordinal 0",
    ),
    (
        "TensorFlow memory",
        "read: tensorflow, core/common_runtime/bfc_allocator and framework/op_kernel.cc",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:\n\nDetected at node "
        "'model/conv1/Conv2D' defined at (most recent call last):\n    File \"/app/task.py\", line 8, in "
        "<module>\nNode: "
        "'model/conv1/Conv2D'\nOOM when allocating tensor with shape[256,64,112,112] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
    ),
    (
        "TensorFlow memory",
        "read: tensorflow, core/common_runtime/eager",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__Mul}} failed to "
        "allocate memory [Op:Mul]",
    ),
    (
        "TensorFlow memory",
        "read: openxla/xla, in libtensorflow_cc, with jit_compile",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Out of memory allocating 4294967296 bytes. "
        "[Op:__inference_train_step_1]",
    ),
    (
        "shared memory",
        "reported: googleapis/python-aiplatform#3434",
        "RuntimeError: DataLoader worker (pid 118) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    (
        "shared memory",
        "read: pytorch, aten/src/ATen/MapAllocator.cpp",
        "RuntimeError: unable to mmap 128 bytes from file </torch_57_1_0>: Cannot allocate memory (12)",
    ),
    (
        "shared memory",
        "read: CPython, OSError of a full tmpfs",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b3c'",
    ),
    (
        "shared memory",
        "reported: vllm-project/vllm#11054",
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
        "unhandled system error\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or "
        "device error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-cjY8K5 (size 10617216), "
        "error: No space left on device (28)",
    ),
    (
        "NCCL shared memory",
        "reported: googleapis/python-aiplatform#3434",
        "workerpool0-0:57:190 [1] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Zt3Ae2 (size "
        "33030528)",
    ),
    (
        "NCCL shared memory",
        "read: NVIDIA/nccl, src/misc/shmutils.cc",
        "3d3e22c3066f:168:168 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-UbzKZ9 to "
        "9637892 "
        "bytes",
    ),
    (
        "disk",
        "reported: Unity-Technologies/datasetinsights#107",
        "OSError: [Errno 28] No space left on device",
    ),
    (
        "disk",
        "read: tensorflow, tsl/platform/default/posix_file_system.cc",
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: /tmp/model.temp/part-00000-of-00001.data; No "
        "space left on device [Op:SaveV2]",
    ),
    (
        "disk",
        "read: huggingface/safetensors, bindings",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
    ),
    (
        "disk",
        "read: pytorch, caffe2/serialize/inline_container.cc",
        "RuntimeError: [enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file "
        "data/37: file "
        "write failed",
    ),
    (
        "host memory",
        "read: pytorch, torch/csrc/DataLoader.cpp",
        "RuntimeError: DataLoader worker (pid(s) 118, 119) is killed by signal: Killed.",
    ),
    (
        "host memory",
        "read: CPython",
        "MemoryError",
    ),
    (
        "host memory",
        "read: numpy, _core/_exceptions.py",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 59.6 GiB for an array with shape (80000, "
        "100000) "
        "and data type float64",
    ),
    (
        "GPU architecture",
        "read: CUDA runtime, cudaErrorNoKernelImageForDevice",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "GPU architecture",
        "read: pytorch, c10/util/Exception.h, since 2.8",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    ),
    (
        "GPU driver",
        "read: pytorch, c10/cuda/CUDAFunctions.cpp",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please update your GPU "
        "driver",
    ),
    (
        "GPU driver",
        "read: CUDA runtime, cudaErrorInsufficientDriver",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    ),
    (
        "GPU driver",
        "read: CUDA runtime, cudaErrorCompatNotSupportedOnDevice",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
        "NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non "
        "supported HW",
    ),
    (
        "no GPU",
        "read: pytorch, torch/csrc/cuda",
        "RuntimeError: No CUDA GPUs are available",
    ),
    (
        "no GPU",
        "read: pytorch, torch/cuda/__init__.py",
        "AssertionError: Torch not compiled with CUDA enabled",
    ),
    (
        "no GPU",
        "read: pytorch, torch/serialization.py",
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. "
        "If you "
        "are running on a CPU-only machine, please use torch.load with map_location=torch.device('cpu')",
    ),
    (
        "cuDNN",
        "read: cuDNN 8, whose shim prints it to stderr and aborts",
        "Could not load library libcudnn_cnn_infer.so.8. Error: libcuda.so: cannot open shared object file: No "
        "such file "
        "or directory",
    ),
    (
        "cuDNN",
        "read: cuDNN 9",
        "Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}",
    ),
    (
        "CUDA libraries",
        "read: the dynamic loader's message, as CPython reports it",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    (
        "CUDA libraries",
        "read: cuDNN, cudnnStatus_t, as PyTorch reports it",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    ),
    (
        "device assert",
        "read: CUDA runtime, cudaErrorAssert",
        "RuntimeError: CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA` to enable "
        "device-side "
        "assertions.",
    ),
    (
        "GPU fault",
        "read: CUDA runtime, cudaErrorECCUncorrectable",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    (
        "TPU in use",
        "reported: google/gvisor#11545",
        "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: "
        "open(/dev/vfio/1): Device "
        "or resource busy: Device or resource busy; Couldn't open iommu group /dev/vfio/1 (set JAX_PLATFORMS='' to "
        "automatically choose an available backend)",
    ),
    (
        "TPU in use",
        "read: libtpu, as JAX reports it",
        "jaxlib.xla_extension.XlaRuntimeError: ABORTED: The TPU is already in use by process with pid 2239507. Not "
        "attempting to load libtpu.so in this process.",
    ),
    (
        "no TPU",
        "read: jax, jax/_src/xla_bridge.py",
        "RuntimeError: Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open "
        "shared object file: No such file or directory (you may need to uninstall the failing plugin package, or set "
        "JAX_PLATFORMS=cpu to skip this backend.)",
    ),
    (
        "no TPU",
        "reported: tensorflow/models#10735",
        "ValueError: Please provide a TPU Name to connect to.",
    ),
    (
        "libtpu",
        "reported: apple/axlearn, axlearn/common/launch.py",
        "2024-01-01 00:00:00.123456: F tensorflow/tpu/tpu_library_init_fns.inc:98] "
        "TpuEmbeddingEngine_ExecutePartitioner not available in this library.",
    ),
    (
        "TPU agent",
        "reported: google-research/text-to-text-transfer-transformer#1003",
        "tensorflow.python.framework.errors_impl.PermissionDeniedError: Error executing an HTTP request: HTTP response "
        'code 403 with body \'{\n  "error": {\n    "code": 403,\n    "message": '
        '"service-12@cloud-tpu.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud '
        'Storage bucket."',
    ),
    (
        "collective timeout",
        "read: pytorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        "[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=131072000, NumelOut=131072000, Timeout(ms)=600000) ran "
        "for 600081 milliseconds before timing out.",
    ),
    (
        "collective timeout",
        "read: libstdc++, of an exception that nothing catches",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ),
    (
        "rendezvous",
        "read: pytorch, torch/csrc/distributed/c10d/TCPStore.cpp",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    ),
    (
        "rendezvous",
        "reported: vllm-project/vllm#19670",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(cmle-training-workerpool0-1a2b-0, 2222).",
    ),
    (
        "rendezvous",
        "reported: ayaka14732/llama-2-jax#20",
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. "
        "Timed out task names:\n/job:jax_worker/replica:0/task:1",
    ),
    (
        "process lost",
        "read: pytorch, torch/csrc/distributed/c10d/NCCLUtils.cpp",
        "torch.distributed.DistBackendError: NCCL error in: "
        "/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1605, "
        "remote process exited or there was a network error, NCCL version 2.18.1\nncclRemoteError: A call failed "
        "possibly "
        "due to a network error or a remote process exiting prematurely.",
    ),
    (
        "process lost",
        "read: pytorch/gloo, gloo/transport/tcp/pair.cc",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[127.0.0.1]:58054",
    ),
    (
        "JAX process lost",
        "reported: AI-Hypercomputer/maxtext#2374",
        "F0920 10:12:44.654663   17682 client.h:75] Terminating process because the JAX distributed service detected "
        "fatal errors. This most likely indicates that another task died; see the other task logs for more details.",
    ),
    (
        "tenant project",
        "reported: GoogleCloudPlatform/vertex-ai-samples#174",
        "google.api_core.exceptions.Forbidden: 403 POST "
        "https://bigquery.googleapis.com/bigquery/v2/projects/vf64-tp/jobs: "
        "Access Denied: Project vf64cb108e9b1b4cfp-tp: User does not have bigquery.jobs.create permission in project "
        "vf64cb108e9b1b4cfp-tp.",
    ),
    (
        "address in use",
        "read: pytorch, torch/csrc/distributed/c10d/socket.cpp",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: "
        "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
    ),
    (
        "address in use",
        "read: CPython, errno 98",
        "OSError: [Errno 98] Address already in use",
    ),
    (
        "module",
        "read: CPython",
        "ModuleNotFoundError: No module named 'transformers'",
    ),
    (
        "module",
        "read: transformers, utils/import_utils.py",
        "ImportError: Using `low_cpu_mem_usage=True` or a `device_map` requires Accelerate: `pip install accelerate`",
    ),
    (
        "main module",
        "read: CPython, Lib/runpy.py",
        "/usr/bin/python3: No module named trainer.task",
    ),
    (
        "main module",
        "read: CPython, Modules/main.c",
        "python: can't open file '/app/task.py': [Errno 2] No such file or directory",
    ),
    (
        "main module",
        "read: CPython, Lib/runpy.py",
        "/opt/conda/bin/python3.10: Error while finding module specification for 'trainer.task' "
        "(ModuleNotFoundError: No "
        "module named 'trainer')",
    ),
    (
        "system library",
        "read: the dynamic loader's message, of opencv-python",
        "ImportError: libGL.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "system library",
        "read: the dynamic loader's message, by ctypes",
        "OSError: libsndfile.so.1: cannot open shared object file: No such file or directory",
    ),
    (
        "binary compatibility",
        "read: Cython, Cython/Utility/ImportExport.c",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 "
        "from PyObject",
    ),
    (
        "binary compatibility",
        "read: numpy, the header that extensions include",
        "ImportError: numpy.core.multiarray failed to import",
    ),
    (
        "binary compatibility",
        "read: the dynamic loader's message, of flash-attn",
        "ImportError: /opt/conda/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: "
        "undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ),
    (
        "old API",
        "read: CPython, of a name that a package no longer has",
        "ImportError: cannot import name 'cached_download' from 'huggingface_hub' "
        "(/opt/conda/lib/python3.10/site-packages/huggingface_hub/__init__.py)",
    ),
    (
        "old API",
        "read: numpy, __init__.py since 1.24",
        "AttributeError: module 'numpy' has no attribute 'bool'.\n`np.bool` was a deprecated alias for the "
        "builtin `bool`.",
    ),
    (
        "architecture",
        "read: runc, and the kernel's ENOEXEC",
        "exec /usr/local/bin/python: exec format error",
    ),
    (
        "arguments",
        "read: CPython, Lib/argparse.py",
        "task.py: error: unrecognized arguments: --job-dir=gs://b/o",
    ),
    (
        "bucket in a program",
        "read: google-cloud-storage",
        "google.api_core.exceptions.NotFound: 404 GET "
        "https://storage.googleapis.com/download/storage/v1/b/dta-1/o/x.csv?alt=media: The specified bucket does not "
        "exist.",
    ),
    (
        "mounted bucket",
        "read: CPython, of a path below Cloud Storage FUSE's mount",
        "FileNotFoundError: [Errno 2] No such file or directory: '/gcs/data-1/train.csv'",
    ),
    (
        "mounted bucket",
        "read: CPython, of a path below Cloud Storage FUSE's mount",
        "PermissionError: [Errno 13] Permission denied: '/gcs/data-1/train.csv'",
    ),
    (
        "mounted bucket",
        "read: CPython, of a path below Cloud Storage FUSE's mount",
        "OSError: [Errno 5] Input/output error: '/gcs/data-1/train.csv'",
    ),
    (
        "mount lost",
        "reported: GoogleCloudPlatform/gcs-fuse-csi-driver#50, with another mount's path",
        "OSError: [Errno 107] Transport endpoint is not connected: '/gcs/data-1/logs'",
    ),
    (
        "TPU initialization",
        "reported: huggingface/transformers#28204",
        "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: Invalid "
        "--2a886c8_slice_builder_worker_addresses specified. Expected 4 worker addresses, got 1.",
    ),
    (
        "TPU initialization",
        "reported: pytorch/xla#7939",
        "RuntimeError: Bad StatusOr access: UNKNOWN: TPU initialization failed: Failed to get global TPU topology.",
    ),
    (
        "gated model",
        "read: huggingface_hub, errors.py",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-66)",
    ),
    (
        "gated model",
        "read: transformers, utils/hub.py",
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x",
    ),
    (
        "open files",
        "read: CPython, errno 24",
        "OSError: [Errno 24] Too many open files",
    ),
    (
        "open files",
        "read: pytorch, torch/utils/data/dataloader.py",
        "RuntimeError: Too many open files. Communication with the workers is no longer possible. Please increase the "
        "limit using `ulimit -n` in the shell or change the sharing strategy by calling "
        "`torch.multiprocessing.set_sharing_strategy('file_system')` at the beginning of your code",
    ),
    (
        "permission",
        "reported: GoogleCloudPlatform/training-data-analyst#1570",
        "google.api_core.exceptions.PermissionDenied: 403 Permission 'aiplatform.tensorboards.get' denied on resource "
        "'//aiplatform.googleapis.com/projects/p-1/locations/us-central1/tensorboards/123' (or it may not exist).",
    ),
    (
        "bucket metadata",
        "read: google-cloud-storage, Client.get_bucket",
        "google.api_core.exceptions.Forbidden: 403 GET "
        "https://storage.googleapis.com/storage/v1/b/data-1?projection=noAcl"
        "&prettyPrint=false: runner@p-1.iam.gserviceaccount.com does not have storage.buckets.get access to the Google "
        "Cloud Storage bucket. Permission 'storage.buckets.get' denied on resource (or it may not exist).",
    ),
)
