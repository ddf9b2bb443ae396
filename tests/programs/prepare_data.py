"""The step prepare_data, as on Vertex AI: `python -m tests.programs.prepare_data INPUTS OUTPUT --executor_input JSON`.

Prints the URI and metadata of the data set, and the path and metadata of the statistics.
"""

import json
import sys

from kfp import dsl

from slipway.components.prepare_data.component import prepare_data


def main() -> None:
    inputs, output = json.loads(sys.argv[1]), sys.argv[2]
    dataset = dsl.Dataset(name="dataset", uri=f"{output}/dataset", metadata={})
    statistics = dsl.HTML(name="statistics", uri=f"{output}/statistics", metadata={})
    prepare_data.python_func(**inputs, dataset=dataset, statistics=statistics)
    print(json.dumps([dataset.uri, dataset.metadata, statistics.path, statistics.metadata]))


if __name__ == "__main__":
    main()
