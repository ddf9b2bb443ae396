"""A user's module that imports a package that is not installed."""

import a_package_that_is_not_there  # noqa: F401
