"""The Cloud Billing Catalog API: SKUs of Compute Engine and Cloud TPU.

Sources: the API's discovery document; the descriptions, groups and prices of vCPUs, memory and GPUs in us-central1 as
public tools have recorded them, such as OpenCost's pkg/cloud/gcp and Hail's batch/batch/cloud/gcp/driver/pricing.py;
those of TPUs as SkyPilot's sky/catalog/data_fetchers/fetch_gcp.py matches them.
"""

from __future__ import annotations

from typing import Any

from tests.fakes.errors import ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.paging import page_of
from tests.fakes.world import World

SERVICE = "cloudbilling.googleapis.com"
COMPUTE, TPU = "6F81-5844-456A", "E000-3F24-B8AA"
LARGEST_PAGE = 5000
US = ("us-central1", "us-east1", "us-west1")
# Service, description, resource group, usage type and the price of an hour, in us-central1 and where else it is listed.
SKUS: tuple[tuple[str, str, str, str, float], ...] = (
    (COMPUTE, "N1 Predefined Instance Core running in Americas", "N1Standard", "OnDemand", 0.031611),
    (COMPUTE, "N1 Predefined Instance Ram running in Americas", "N1Standard", "OnDemand", 0.004237),
    (COMPUTE, "Spot Preemptible N1 Predefined Instance Core running in Americas", "N1Standard", "Preemptible", 0.00869),
    (COMPUTE, "Spot Preemptible N1 Predefined Instance Ram running in Americas", "N1Standard", "Preemptible", 0.001165),
    (COMPUTE, "Commitment v1: Cpu in Americas for 1 Year", "CPU", "Commit1Yr", 0.019915),
    (COMPUTE, "N1 Predefined Instance Core running in Sao Paulo", "N1Standard", "OnDemand", 0.050182),
    (COMPUTE, "G2 Instance Core running in Americas", "CPU", "OnDemand", 0.02498808),
    (COMPUTE, "G2 Instance Ram running in Americas", "RAM", "OnDemand", 0.00292738),
    (COMPUTE, "G2 Custom Instance Core running in Americas", "CPU", "OnDemand", 0.026237),
    (COMPUTE, "Reserved G2 Instance Core in Americas", "CPU", "OnDemand", 0.02),
    (COMPUTE, "A2 Instance Core running in Americas", "CPU", "OnDemand", 0.031611),
    (COMPUTE, "A2 Instance Ram running in Americas", "RAM", "OnDemand", 0.004237),
    (COMPUTE, "DWS Defined Duration A3 Core running in Americas", "CPU", "OnDemand", 0.0127),
    (COMPUTE, "Nvidia Tesla T4 GPU running in Americas", "GPU", "OnDemand", 0.35),
    (COMPUTE, "Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", "GPU", "Preemptible", 0.175),
    (COMPUTE, "Nvidia L4 GPU running in Americas", "GPU", "OnDemand", 0.56004),
    (COMPUTE, "Nvidia Tesla A100 GPU running in Americas", "GPU", "OnDemand", 2.93391),
    (COMPUTE, "Nvidia Tesla A100 80GB GPU running in Americas", "GPU", "OnDemand", 3.92768),
    (COMPUTE, "Nvidia H100 80GB GPU running in Americas", "GPU", "OnDemand", 9.79653),
    (
        COMPUTE,
        "Nvidia H100 80GB GPU attached to DWS Defined Duration VMs running in Americas",
        "GPU",
        "OnDemand",
        4.200761,
    ),
    (COMPUTE, "A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", "OnDemand", 16.11),
    (COMPUTE, "Spot Preemptible A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", "Preemptible", 4.9542),
    (COMPUTE, "TpuV5e running in Americas", "TPU", "OnDemand", 1.2),
    (COMPUTE, "Preemptible TpuV5e running in Americas", "TPU", "OnDemand", 0.24493),
    (TPU, "Tpu-v2 accelerator running in Americas", "TPU", "OnDemand", 4.5),
    (TPU, "Tpu-v2 Pod accelerator running in Americas", "TPU", "OnDemand", 6.0),
    (TPU, "Preemptible Tpu-v2 accelerator running in Americas", "TPU", "OnDemand", 1.35),
)


class FakeBilling:
    """The public catalog, which any caller of a project with the API may read. `skus` are those above."""

    def __init__(self, service: HttpService, world: World) -> None:
        self.skus = {name: [sku(*row[1:]) for row in SKUS if row[0] == name] for name in (COMPUTE, TPU)}

        @service.route("GET", "/v1/services/{service}/skus")
        def skus(request: Request) -> Any:
            world.require_service(next(iter(world.projects.values())), SERVICE)
            if request.parts["service"] not in self.skus:
                raise ServiceError(404, "Requested entity was not found.")
            size, token = int(request.query.get("pageSize", LARGEST_PAGE)), request.query.get("pageToken", "")
            page, following = page_of(self.skus[request.parts["service"]], size, token, LARGEST_PAGE)
            return {"skus": page, "nextPageToken": following}


def sku(
    description: str, group: str, usage: str, price: float, regions: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Return a SKU as the API does."""
    if regions is None:
        regions = ("southamerica-east1",) if "Sao Paulo" in description else US
    units = int(price)
    rate = {"currencyCode": "USD", "units": str(units), "nanos": round((price - units) * 1e9)}
    expression = {
        "usageUnit": "GiBy.h" if " Ram " in description else "h",
        "displayQuantity": 1,
        "tieredRates": [{"startUsageAmount": 0, "unitPrice": rate}],
    }
    return {
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": usage,
        },
        "serviceRegions": list(regions),
        "pricingInfo": [{"summary": "", "pricingExpression": expression, "currencyConversionRate": 1}],
        "serviceProviderName": "Google",
    }
