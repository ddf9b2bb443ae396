"""The Python API, which `import slipway` offers: runs and models as objects, and the functions that start runs."""
