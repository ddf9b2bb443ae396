"""What Google's services say about machines: shapes that do not exist, quotas, and capacity."""

from slipway.components.cloud.known_errors.error import ALL, QUOTA_PAGE, KnownError, known

ELSEWHERE = (
    "continue in another region: slipway run --resume latest --set vertex.regions.REGION.bucket=gs://BUCKET; or on "
    "other hardware, or let the job wait for GPUs: --hardware 'CHOICE+flex+wait=24h'; then slipway run --target vertex"
)
MORE_QUOTA = (
    f"request more quota in {{region}} at {QUOTA_PAGE}, or use a region that has some: slipway doctor lists them"
)

MACHINES: tuple[KnownError, ...] = (
    known(
        "accelerator",
        "the machine type does not support that accelerator",
        r'Accelerator "(?P<accelerator>[^"]+)" is not supported for machine type "(?P<machine>[^"]+)"',
        "The machine type {machine} does not support the accelerator {accelerator}, or not that many.",
        "slipway hardware lists the combinations; then --hardware CHOICE",
    ),
    known(
        "accelerator count",
        "an accelerator without a count, or a count without one",
        r"Both `accelerator_type` and `accelerator_count` should be specified or [Nn]one",
        "A worker pool names an accelerator without its count, or a count without an accelerator.",
        "give the hardware as one choice, which has both: --hardware l4x4",
    ),
    known(
        "machine type",
        "a machine type that training does not offer",
        r"Machine type (?:\"|')?(?P<machine>[\w-]+)(?:\"|')? is not supported",
        "Vertex AI training does not offer the machine type {machine}.",
        "slipway hardware lists the machine types; then --hardware CHOICE",
    ),
    known(
        "chief",
        "several replicas in the first worker pool",
        r"Chief spec replica count cannot be greater than 1",
        "The first worker pool has several replicas: it must have one, the chief; the others belong in the second.",
        "append the number of replicas to the hardware: --hardware 'cpu*4'",
    ),
    known(
        "quota",
        "a quota of the project is used up, or 0",
        r"following quota metrics exceed quota limits: "
        r"(?P<metric>aiplatform\.googleapis\.com/\w+(?:,\s*aiplatform\.googleapis\.com/\w+)*)"
        r"|following quotas are exceeded: (?P<metric2>\w+(?:,\s*\w+)*)",
        "The project has too little quota in {region} for this run: {metric}.",
        MORE_QUOTA,
        moves=ALL,
    ),
    known(
        "TPU quota",
        "the quota of Cloud TPU is used up, or 0",
        r"Quota (?:limit )?'(?P<metric>TPU\w+)' (?:has been exceeded|exhausted)\.\s+Limit:? (?P<limit>\d+) in "
        r"(?:zone|region) (?P<where>[\w-]*\w)",
        "The project's quota of TPUs in {where} is used up: {metric} is {limit}. Requests that wait or failed count.",
        "gcloud compute tpus queued-resources list --project={project} --zone=ZONE shows what holds it; or request "
        f"more quota at {QUOTA_PAGE}, or use other zones: --set tpu.zones=[ZONE]",
    ),
    known(
        "Compute Engine quota",
        "a quota of Compute Engine is used up, or 0",
        r"Quota '(?P<metric>\w+)' exceeded\.\s+Limit: (?P<limit>[\d.]+)",
        "The project has too little Compute Engine quota for this run: {metric} is {limit}.",
        MORE_QUOTA,
        moves=ALL,
    ),
    known(
        "Dataflow workers",
        "the project's quota is too small for Dataflow's workers",
        # https://github.com/googlecodelabs/feedback/issues/967
        r"Exceeded limit '(?P<metric>QUOTA_FOR_\w+)' on resource",
        "The project has too little Compute Engine quota for Dataflow's workers: {metric}.",
        f"request more quota in {{region}} at {QUOTA_PAGE}, or fewer or smaller workers: max_num_workers and "
        "machine_type in data.beam.options",
    ),
    known(
        "reservation",
        "a reservation that does not exist, is not ready, or has no free machines of that kind",
        r"Specified reservations? (?P<reservation>\S+) (?:does not exist|does not have available resources)"
        r"|No available resources in specified reservations"
        r"|Cannot use reservation, it requires reservation to be in READY state",
        "The reservation does not exist, is not ready, or has no free machines of this kind.",
        "gcloud compute reservations list --project={project} shows the reservations with their machines; then "
        "--hardware 'CHOICE+reservation=projects/PROJECT/zones/ZONE/reservations/NAME', or without +reservation",
    ),
    known(
        "waiting",
        "flexible start found no machines within the time that the job may wait",
        # https://docs.cloud.google.com/kubernetes-engine/docs/concepts/dws
        r"could not provision queued instances in the allocated time",
        "No machines of this kind were free within the time that the job may wait.",
        "slipway run --resume latest, later; or a longer wait: --hardware 'CHOICE+flex+wait=24h'",
        moves=ALL,
    ),
    known(
        "capacity",
        "the region has no free machines of that kind",
        r"Resources are insufficient in region: (?P<where>[a-z]+-[a-z]+\d+)"
        r"|not have enough resources available to fulfill the request"
        r"|not enough resources available to fulfill the request"
        r"|does not currently have sufficient capacity for the requested resources"
        r"|A [\w-]+ VM instance (?:with .{1,60} )?is currently unavailable in the (?P<where2>[\w-]+) zone",
        "There are no free machines of this kind in {where} at the moment.",
        ELSEWHERE,
        moves=ALL,
    ),
    known(
        "Spot capacity",
        "no free machines of that kind, or Spot machines were preempted more often than Vertex AI restarts a job: six "
        "times",
        # https://cloud.google.com/vertex-ai/docs/predictions/use-spot-vms
        r"\bSTOCKOUT\b",
        "{region} has no free machines of this kind, or none for another restart of a preempted Spot job.",
        "slipway run --resume latest, later; or other hardware (--hardware), such as the same without +spot",
        moves=ALL,
    ),
    known(
        "TPU capacity",
        "Cloud TPU has no free TPUs; it speaks of reservations to those without one, too",
        # https://github.com/skypilot-org/skypilot/issues/4579
        r"Insufficient reserved capacity|There is no more capacity in the zone",
        "There are no free TPUs of this kind in the zone at the moment, or none in the project's reservation.",
        "slipway run --resume latest later, or with other zones: --set tpu.zones=[ZONE]",
    ),
    known(
        "serving capacity",
        "the region has no free machines for a deployment or a batch prediction",
        r"Machine type temporarily unavailable",
        "There are no free machines of this kind for serving in {region} at the moment.",
        "repeat the command later, or choose other hardware: `machine` in configs/endpoints/NAME.yaml, or --hardware "
        "CHOICE for a batch prediction",
    ),
    known(
        "addresses",
        "the subnetwork has no free addresses",
        r"IP space of '(?P<subnetwork>[^']+)' is exhausted",
        "The subnetwork {subnetwork} has no free addresses for the machines.",
        "expand it: gcloud compute networks subnets expand-ip-range {subnetwork} --prefix-length=LENGTH; or fewer "
        "replicas (--hardware)",
    ),
)
