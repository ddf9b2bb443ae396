"""Print what expressions are in the modules that are imported from the working directory, as a run imports them.

stdin has the module and the expression by name; stdout receives the results by name; both are JSON.
"""

import importlib
import json
import sys


def main() -> None:
    results = {}
    for name, (module, expression) in json.load(sys.stdin).items():
        try:
            results[name] = repr(eval(expression, vars(importlib.import_module(module))))
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


if __name__ == "__main__":
    main()
