#!/bin/sh
# Stands for a tool of a fake host: prints what is recorded for exactly these arguments (`_` for none), exits as it did.
#   .answers/TOOL/ARGUMENTS          standard output        .answers/TOOL/ARGUMENTS.status   exit status
#   .answers/TOOL/ARGUMENTS.stderr   standard error         .answers/TOOL/ARGUMENTS.delay    seconds before the answer
#   .answers/TOOL.delay              seconds before any answer
tool=${0##*/}
answer="$FAKE_HOST/.answers/$tool/${*:-_}"
[ -e "$FAKE_HOST/.answers/$tool.delay" ] && sleep "$(cat "$FAKE_HOST/.answers/$tool.delay")"
if [ ! -e "$answer" ]; then
    echo "Command or option is not found."
    exit 255
fi
[ -e "$answer.delay" ] && sleep "$(cat "$answer.delay")"
[ -e "$answer.stderr" ] && cat "$answer.stderr" >&2
cat "$answer"
[ -e "$answer.status" ] && exit "$(cat "$answer.status")"
exit 0
