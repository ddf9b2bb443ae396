"""Compare all hardware for a configuration before anything is paid, and choose it by a deadline and a budget."""

from slipway.extensions import Extension

EXTENSION = Extension(
    "advice",
    requires=("google",),
    comparison="slipway.pipelines.advice.command:compare",
    observers=("slipway.pipelines.advice.learned:Learner",),
    chooser="slipway.pipelines.advice.automatic:choose",
    functions={"hardware": "slipway.pipelines.advice.api:hardware"},
)
