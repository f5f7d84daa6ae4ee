#!/bin/bash
# Lives on beside a killed installer until the next one says that it waits for this command, or for 90 seconds in vain.
output="${0%/*}/output"
for _ in {1..1800}; do
    if grep -q "waiting for an earlier run" "$output"; then exit 0; fi
    sleep 0.05
done
