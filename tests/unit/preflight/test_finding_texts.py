"""Findings in Chinese: every sentence of a check has one, none is left over, and they are put together rightly."""

import re
from pathlib import Path

import pytest
from ascendd.checks import CHECKS

from ascendd.host.vendor_facts import load_facts
from ascendd.preflight.finding_texts import SHARED, finding_in, findings_catalogue
from ascendd.preflight.language import Language
from ascendd.preflight.remedy_texts import findings

ROOT = Path(__file__).resolve().parents[3]
CHINESE = re.compile("[\u3000-\u9fff\uff00-\uffef]")
# Who speaks in findings beside the checks.
PROBES = (
    *(f"ascendd/preflight/{name}.py" for name in ("child", "chips", "cluster", "context", "runner", "target")),
    *(
        f"ascendd/host/{name}.py"
        for name in ("acl", "acl_child", "acl_sample", "boot", "command", "device_holders", "elf", "files", "hccn_tool",
                     "kernel_log", "memory", "npu_smi", "npu_smi_lists", "npu_smi_table", "numa", "policy",
                     "service_environment", "tcp_ports", "tool", "vendor_sample")
    ),
)  # fmt: skip
# Names, numbers with units, and parts of sentences that stand as a whole in the catalogue.
UNTRANSLATED = {
    "NPU {}", "NPU {} chip {}", "NPU {} chip {}{}", " {} MB", "{} MiB", "{} GiB", "one layer", "KV cache", "all equal",
    "CANN toolkit", "parallel.devices: {}", "fewer chips", " or ", "--device cpu", "FAKE HOST", "MemoryMax= of the unit",
    "the runtime", "{} needs {}", "{} (pid {})", "Usual cause: {} ", "Usual cause: {} {}", "an NPU",
    "%Y-%m-%d %H:%M UTC", "cd \"$1\" && exec \"$2\"",
    "how NPU {} reach each other is not known", "; the last was on {}", ", as far as its logs tell",
    "nothing was installed since the host was started{}", "{} weights + {} KV cache", "{} + {} reserve of {} on each chip",
    "{} is not in the driver's group {} and {}", " may open {} device nodes", " exists", "; a copy is at {}",
    "{} is not on the library path{}", "{} said nothing and wrote no program",
}  # fmt: skip
# What tools print and are looked for.
OF_TOOLS = re.compile(
    r"Double Bit|Error (?:Count|Code|Information)|Detect ip set|does not support|open files|locked memory|-- No entries|"
    r"(?:AI Core|AI Cpu|Ctrl Cpu|Memory BW|NPU Util)\(%\)|(?:NPU|Chip|Process) (?:ID|id|name|memory|Count|Name|Phy|Logic)|"
    r"(?:Total|Card) Count|There is no NPU|Another user|No running|PARTIAL|Socket fail|Receive timeout|Time exceeded|"
    r"Thread error|no ip was|link status|link up count|net health|fec mode|shared libraries|error while loading|"
    r"Firmware Version|Permission denied|ascendd-acl-sample|npu-smi said: Another|npu-smi: \{\} \(|npu-smi -|failed\||\^Drv"
)


def is_said(text: str, titles: set[str]) -> bool:
    """Tell whether a text of a module is a part of a finding: no title, name, pattern or word of a tool."""
    is_pattern = re.search(r"\\[wsdb\[]|\(\?|\|.*\|", text) is not None
    return text not in titles | UNTRANSLATED and not is_pattern and OF_TOOLS.match(text) is None


def test_every_finding_has_its_chinese() -> None:
    """A sentence that is said in a check, a probe or the runner, and that the catalogue lacks, is found here."""
    titles = {check.title for check in CHECKS}
    paths = [*(path for path in (ROOT / "checks").glob("*.py") if path.stem[0] != "_"), *map(ROOT.joinpath, PROBES)]
    lacking = []
    for path in paths:
        for text in findings(path.read_text(encoding="utf-8")):
            filled = text.replace("{}", "X1")
            # What is appended to a sentence is looked up behind one.
            told = {finding_in(head + filled, path.stem, Language.ZH) for head in ("", "X1", "X1 cannot be read: X1")}
            if is_said(text, titles) and not any(CHINESE.search(one.removeprefix("无法读取 X1：")) for one in told):
                lacking.append(f"{path.name}: {text}")

    assert lacking == [], "\n".join(lacking)


def test_no_chinese_is_left_without_its_sentence() -> None:
    """What an entry has of fixed text stands in the source of its module, so a sentence that changed is found here."""
    stale = []
    facts = str([*load_facts("kernel_faults")["rules"], load_facts("version_policy")])
    plan = ("ascendd/config/plan.py", "ascendd/config/resolve.py")  # their refusals are findings of plan-fits
    probes = "".join((ROOT / path).read_text(encoding="utf-8") for path in (*PROBES, *plan))
    for module, table in findings_catalogue().items():
        own = "" if module == SHARED else (ROOT / "checks" / f"{module}.py").read_text(encoding="utf-8")
        # A sentence over two lines of source is one here; what a name is put into is cut off by its brace.
        source = re.sub(r"\"\s+f?\"", "", own + probes + facts)
        for text in table:
            if "Double Bit" in text:  # npu-smi's own names of its counters
                continue
            words = [word for part in text.split("{}") for word in re.findall(r"[a-zA-Z_.]{3,}", part)]
            stale += [f"{module}: {text}"] if not all(word in source for word in words) else []

    assert stale == [], "\n".join(stale)


def test_a_translation_takes_what_is_put_in() -> None:
    """Each `{}` stands in the Chinese by number, once."""
    for table in findings_catalogue().values():
        for text, chinese in table.items():
            assert sorted(re.findall(r"\{(\d+)\}", chinese)) == sorted(map(str, range(text.count("{}")))), text


@pytest.mark.parametrize(
    ("check", "english", "chinese"),
    [
        ("npu-health", "NPU 3 is Alarm (80E01801 hbm)", "NPU 3 的状态是 Alarm (80E01801 hbm)"),
        ("npu-health", "NPU 3 is Alarm (not used by this instance)", "NPU 3 的状态是 Alarm（本实例不使用它）"),
        ("npu-sensors", "NPU 0 has 96 C; NPU 1 has 97 C", "NPU 0 温度 96 C；NPU 1 温度 97 C"),
        ("hbm-free", "NPU 0: 9 of 65536 MB in use, and no process is listed; NPU 1: 8 of 65536 MB in use, held by x 7 MB",
         "NPU 0：已用 9 / 65536 MB，而且没有列出任何进程；NPU 1：已用 8 / 65536 MB，被 x 7 MB 占用"),
        ("host-memory", "2.0 GiB free; no model to compare with", "空闲 2.0 GiB；没有可比较的模型"),
        ("cann-version", "7.0.0 at /opt/c: CANN 7.0.0 is refused without hotfix H100",
         "7.0.0，位于 /opt/c：没有 H100 补丁的 CANN 7.0.0 不予使用"),
        ("npu-ecc", "could not check: npu-smi did not answer within 20 s and was killed",
         "无法检查：npu-smi 在 20 秒内没有应答，已被终止"),
        ("port-free", "npu-presence failed, so this would say nothing", "npu-presence 失败，所以这一项说明不了什么"),
        ("npu-ecc", "Nobody wrote this; nor this.", "Nobody wrote this；nor this."),
    ],
)  # fmt: skip
def test_a_finding_is_put_together_of_its_sentences(check: str, english: str, chinese: str) -> None:
    """Joined, appended and put-in sentences are Chinese, too; what no sentence fits stays."""
    assert finding_in(english, check, Language.ZH) == chinese
    assert finding_in(english, check, Language.EN) == english
