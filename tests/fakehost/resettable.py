"""A fake machine whose npu-smi resets chips, as often as told in vain, and whose msnpureport exports device logs."""

from __future__ import annotations

from pathlib import Path

import vendor_texts as texts
from fake_machine import ASCEND, FakeMachine
from fault_cases import chip_row

_RESET = """
say() {{ printf '%s' "$1"; read -r answer; echo "$answer" >> "$FAKE_HOST/answers"; [ "$answer" = Y ] || exit 1; }}
case "$1 $2 $3" in
"set -t reset")
    echo "$*" >> "$FAKE_HOST/resets"
    [ -e "$FAKE_HOST/exported" ] && echo "$*" >> "$FAKE_HOST/resets-after-export"
    if [ -e "$FAKE_HOST/locked" ]; then cat "$FAKE_HOST/locked"; exit 1; fi
    echo "Resetting the standard PCIe card or NPU chip may cause a system hang or abnormal reset during service running."
    say "Are you sure you want to continue resetting?(Y/N)"
    [ {prompts} = 2 ] && say "It will reboot all devices, do you want to continue reboot? [y/n]"
    printf '\\tMessage                        : resetting ...\\n'
    if [ "$(wc -l < "$FAKE_HOST/resets")" -le {fails} ]; then
        printf '\\tStatus                         : Fail\\n'
        exit 1
    fi
    cp "$FAKE_HOST/healthy" "$FAKE_HOST/.answers/npu-smi/info"
    printf '\\tStatus                         : OK\\n\\tMessage                        : Reset card successfully.\\n'
    exit 0;;
esac
exec "$FAKE_HOST/usr/local/bin/recorded/npu-smi" "$@"
"""


class ResettableMachine(FakeMachine):
    """Chip 2 is in alarm until a reset; the first `fails` resets do nothing. `prompts` is 1 or 2."""

    def __init__(self, root: Path, fails: int = 0, prompts: int = 1) -> None:
        super().__init__(root)
        self.tool("npu-smi", "usr/local/bin/recorded")
        self.script("usr/local/bin/npu-smi", _RESET.format(fails=fails, prompts=prompts))
        export = 'touch exported.log "$FAKE_HOST/exported"; echo "Export finished."'
        self.script(f"{ASCEND}/driver/tools/msnpureport", export)
        self.write("healthy", texts.info_table())
        self.alarm(2)

    def alarm(self, chip: int) -> None:
        """Have a chip report a fault."""
        chip_row(self, chip, "| OK            |", "| Alarm         |")

    def resets(self) -> list[str]:
        """The orders to reset, in their order."""
        path = self.root / "resets"
        return path.read_text().splitlines() if path.exists() else []
