"""Reports in two languages: everything that a check may tell has both, and none is left over."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

from ascendd.preflight.check import CheckResult, Remedy, Verdict
from ascendd.preflight.discover import find_checks
from ascendd.preflight.language import Language, catalogue, choose_language, remedy_in
from ascendd.preflight.remedy_texts import of_folder, templates
from ascendd.preflight.report import print_report, verdict_line
from ascendd.preflight.runbook_pages import pages
from ascendd.preflight.target import Target

ROOT = Path(__file__).resolve().parents[3]
# Beside the checks these modules write remedies, too.
PROBES = ("ascendd/host/npu_smi.py", "ascendd/host/kernel_log.py", "ascendd/host/policy.py",
          "ascendd/preflight/chips.py", "ascendd/preflight/runner.py", "ascendd/config/plan.py", "ascendd/config/resolve.py")  # fmt: skip


def all_remedies() -> set[str]:
    """Every sentence that a check may tell an operator to act by."""
    from ascendd.host.vendor_facts import load_facts

    by_module = of_folder(ROOT / "checks")
    by_module.pop("__main__")
    found = {text for texts in by_module.values() for text in texts}
    found |= {text for path in PROBES for text in templates((ROOT / path).read_text(encoding="utf-8"))}
    return found | {rule["remedy"] for rule in load_facts("kernel_faults")["rules"]}


def test_every_remedy_has_its_chinese_and_the_catalogue_no_other() -> None:
    """A new sentence without a translation, and a translation whose sentence is gone, are found here."""
    known = set(catalogue()["remedies"])

    assert all_remedies() - known == set()
    assert known - all_remedies() == set()


def test_a_translation_takes_what_is_put_in() -> None:
    """Each `{}` of a sentence stands in its translation, by number."""
    for text, chinese in catalogue()["remedies"].items():
        places = {str(number) for number in range(text.count("{}"))}

        assert set(re.findall(r"\{(\d)\}", chinese)) == places, text
        assert re.search(r"[\u4e00-\u9fff]", chinese), text


def test_every_check_and_verdict_has_its_chinese() -> None:
    """Titles by id, verdicts by value."""
    assert set(catalogue()["titles"]) == {check.id for check in find_checks()}
    assert set(catalogue()["verdicts"]) == {verdict.value for verdict in Verdict}


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        (None, {"LANG": "zh_CN.UTF-8"}, "zh"), (None, {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "C"}, "zh"), (None, {}, "en"),
        ("en", {"LANG": "zh_CN"}, "en"), ("zh", {}, "zh"),
    ],
)  # fmt: skip
def test_the_language_is_that_asked_for_else_that_of_the_locale(
    asked: Any, environ: dict[str, str], expected: str
) -> None:
    """LC_ALL beats LC_MESSAGES beats LANG, as everywhere."""
    assert choose_language(asked, environ) is Language(expected)


def test_a_remedy_is_translated_with_what_was_put_in_and_an_unknown_one_stays() -> None:
    """The longest fixed text wins, so `Install torch_npu` is not taken for `Install`."""
    assert remedy_in("Install torch_npu 2.6.0.", Language.ZH) == "安装 torch_npu 2.6.0。"
    assert remedy_in("Put llm into the group HwHiAiUser, then restart its instances.", Language.ZH) == (
        "把 llm 加入 HwHiAiUser 组，然后重启它的实例。"
    )
    assert remedy_in("Nobody wrote this.", Language.ZH) == "Nobody wrote this."
    assert remedy_in("Reset the chip.", Language.EN) == "Reset the chip."


def test_a_whole_report_is_chinese() -> None:
    """Head, verdict, title, finding, remedy and the last line; what npu-smi names stays as it was measured."""
    results = [
        CheckResult(
            Verdict.FAIL,
            "NPU 3: HBM Double Bit Error Count 2",
            {},
            Remedy("ASD-D05", "Reset the chip."),
            0.1,
            "npu-ecc",
        )
    ]
    out = io.StringIO()

    print_report(results, Target(True, "because"), {"npu-ecc": "NPU memory errors"}, out, Language.ZH)

    text = out.getvalue()
    for word in (
        "检查项",
        "结论",
        "失败",
        "NPU 内存错误",
        "处理办法",
        "复位芯片。",
        "未就绪 (1 失败)",
        "NPU 3: HBM 双比特错误计数 2",
    ):
        assert word in text, text
    assert verdict_line(results) == "Not ready (1 fail)"


def test_the_runbooks_of_checks_are_the_generated_ones() -> None:
    """`python -m ascendd.preflight.runbook_pages docs/runbooks` was run after the last change, and no page is stale."""
    folder = ROOT / "docs" / "runbooks"
    made = pages()

    assert {name: (folder / name).read_text(encoding="utf-8") for name in made} == made
    assert {f"checks/{path.name}" for path in (folder / "checks").glob("*")} | {"CHECKS.md"} == set(made)
