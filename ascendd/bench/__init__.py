"""A load generator for any OpenAI-compatible server, so that this one and its peers are measured by the same tool."""
