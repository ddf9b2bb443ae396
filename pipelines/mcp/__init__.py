"""`slipway mcp`: a server of the Model Context Protocol, with which assistants read this project and start runs."""
