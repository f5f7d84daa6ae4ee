"""The preflight suite: checks, how they are run, and how their results are told. Stdlib only."""
