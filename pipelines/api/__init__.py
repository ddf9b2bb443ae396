"""The Python API, which `import slipway` offers: runs as objects, and the functions that start them."""

from slipway.pipelines.api.errors import Rejected as Rejected
from slipway.pipelines.api.errors import RunFailed as RunFailed
from slipway.pipelines.api.existing import Run as Run
from slipway.pipelines.api.existing import Runs as Runs
from slipway.pipelines.api.functions import check as check
from slipway.pipelines.api.functions import model as model
from slipway.pipelines.api.functions import rehearse as rehearse
from slipway.pipelines.api.functions import run as run
from slipway.pipelines.api.functions import runs as runs
from slipway.pipelines.api.models import Model as Model
from slipway.pipelines.api.report import Report as Report
