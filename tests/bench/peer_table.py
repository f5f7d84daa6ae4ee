"""What `peers.py` prints and draws of the figures that it kept."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from peer_sides import CASES, Figures

WEIGHT_BYTES = {"fp32": 4.0, "fp16": 2.0, "int8": 1.0, "q8_0": 34 / 32}
Row = dict[str, object]


@dataclass(frozen=True)
class Measured:
    """What one side did with one case in one round."""

    round: int
    case: str
    side: str
    figures: Figures


def _medians(rounds: dict[int, Figures]) -> Figures:
    keys = next(iter(rounds.values()))
    return {key: statistics.median(figures[key] for figures in rounds.values()) for key in keys}


def _ratio(ours: dict[int, Figures], theirs: dict[int, Figures], key: str) -> float | None:
    both = [ours[number][key] / theirs[number][key] for number in ours.keys() & theirs.keys()]
    return statistics.median(both) if both else None


def _limit_share(case: str, side: str, medians: Figures, machine: Figures, artefact: Path) -> tuple[str, float]:
    """Return which limit holds and the share of it: reading all weights for each token, or multiplying with all of them."""
    from ascendd.config.model_facts import read_model_facts

    facts = read_model_facts(artefact)
    if case == "1":
        read = facts.num_parameters * WEIGHT_BYTES[side.split()[1]] / 1e9
        return "memory", 1000 / medians["gap_p50_ms"] * read / machine["gb_per_s"]
    head = facts.vocab_size * facts.hidden_size
    shape = CASES[case]
    num_prompt = sum(map(len, shape.prompts))
    num_out = shape.num_requests * shape.num_out
    layers = (facts.num_parameters - head) * (num_prompt + num_out - shape.num_requests)
    return "arithmetic", 2 * (layers + head * num_out) / 1e9 * medians["tokens_per_s"] / num_out / machine[
        "gflop_per_s"
    ]


def print_table(kept: list[Measured], artefact: Path) -> list[Row]:
    """Print a table for each case and return its rows."""
    rows: list[Row] = []
    for case in CASES:
        found: dict[str, dict[int, Figures]] = {}
        for one in kept:
            if one.case == case:
                found.setdefault(one.side, {})[one.round] = one.figures
        machine = found.pop("machine", {})
        if not found:
            continue
        shape = CASES[case]
        # The limit is the best that was seen: a busy neighbour takes from it and adds nothing.
        limits = {key: max(f[key] for f in machine.values()) for key in ("gb_per_s", "gflop_per_s")} if machine else {}
        print(
            f"\ncase {case}: {shape.num_requests} x {shape.shortest}..{shape.longest} tokens, {shape.num_out} out"
            f"{', prompts of 1,024 keep arriving' if shape.late else ''}"
            + (f"; limits {limits['gb_per_s']:.1f} GB/s, {limits['gflop_per_s']:.0f} GFLOP/s" if limits else "")
        )
        peers = [name for name in found if not name.startswith("ascendd")]
        head = f"{'side':<18} {'tok/s':>7} {'limit':>6} {'first s':>8} {'gap ms':>7} {'p99':>7} {'prompt/s':>8}  rounds"
        print(head + "".join(f"  /{name}" for name in peers))
        for name, rounds in found.items():
            medians = _medians(rounds)
            row: Row = {"case": case, "side": name, **{key: round(value, 3) for key, value in medians.items()}}
            row["rounds"] = [round(f["tokens_per_s"], 2) for f in rounds.values()]
            share = ""
            if limits and not shape.late:
                kind, value = _limit_share(case, name, medians, limits, artefact)
                row |= {"limit": kind, "share_of_limit": round(value, 3), **{k: round(v, 2) for k, v in limits.items()}}
                share = f"{value:.0%}"
            for peer in peers:
                keys = ("tokens_per_s", "first_p50_s", "prompt_tokens_per_s")
                row[f"ratio_to_{peer}"] = {
                    key: round(ratio, 3) for key in keys if (ratio := _ratio(rounds, found[peer], key)) is not None
                }
            ratios = [row[f"ratio_to_{peer}"] for peer in peers]
            key = "prompt_tokens_per_s" if case == "prefill" else "tokens_per_s"
            gaps = [f"{medians[gap]:.1f}" if gap in medians else "-" for gap in ("gap_p50_ms", "gap_p99_ms")]
            print(
                f"{name:<18} {medians['tokens_per_s']:>7.1f} {share:>6} {medians['first_p50_s']:>8.3f} {gaps[0]:>7} "
                f"{gaps[1]:>7} {medians['prompt_tokens_per_s']:>8.0f}  {len(rounds):>6}"
                + "".join(
                    f"  {f'{ratio[key]:.2f}x' if isinstance(ratio, dict) and key in ratio else '-':>{len(peer) + 1}}"
                    for peer, ratio in zip(peers, ratios, strict=True)
                ),
                flush=True,
            )
            rows.append(row)
    return rows


def svg(rows: list[Row]) -> str:
    """Return a plot of bars: output tokens per second (of a prompt alone, prompt tokens) by case and side."""
    lines, top = [], 8
    for case in CASES:
        key = "prompt_tokens_per_s" if case == "prefill" else "tokens_per_s"
        bars = [(str(row["side"]), float(str(row[key]))) for row in rows if row["case"] == case]
        if not bars:
            continue
        unit = "prompt tokens/s" if case == "prefill" else "output tokens/s"
        lines.append(f'<text x="0" y="{top + 13}" font-size="13" font-weight="bold">case {case}, {unit}</text>')
        top += 22
        most = max(value for _, value in bars)
        for side, value in bars:
            colour = "#c7372f" if side.startswith("ascendd") else "#8a8f98"
            width = 500 * value / most
            lines += [
                f'<text x="12" y="{top + 13}" font-size="13">{side}</text>',
                f'<rect x="150" y="{top}" width="{width:.0f}" height="16" fill="{colour}"/>',
                f'<text x="{156 + width:.0f}" y="{top + 13}" font-size="13">{value:.1f}</text>',
            ]
            top += 22
        top += 10
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top}" font-family="sans-serif">'
    return "\n".join([begin, *lines, "</svg>", ""])
