"""The log diagnoser: streams logs of any size and names the earliest specific cause; rules and texts are data."""
