"""Each meaning of an npu operator against numbers worked out by hand from the operator's document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

Meaning = Callable[[str], Callable[..., Any]]
# Operator -> the tests that hold its meaning to numbers worked out by hand.
VECTORS: dict[str, list[str]] = {}
# Without a page of their own: what they do is in the example of how a captured attention gets new lengths.
DESCRIBED_BY_EXAMPLE = {
    "npu_fused_infer_attention_score.out": "graph_task_update_begin",
    "_npu_fused_infer_attention_score_get_max_workspace": "graph_task_update_begin",
}


def vector(operator: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note that a test is a vector of `operator`; the fixture `meaning` fails it if it never asks for that."""

    def note(test: Callable[..., None]) -> Callable[..., None]:
        VECTORS.setdefault(operator, []).append(test.__name__)
        test.operator = operator  # type: ignore[attr-defined]
        return test

    return note


@pytest.fixture
def meaning(request: pytest.FixtureRequest) -> Iterator[Meaning]:
    """Find a meaning by the operator's name; the functions need neither torch_npu nor a machine."""
    from standin_npu.meanings import MEANINGS

    asked = set()

    def find(name: str) -> Callable[..., Any]:
        asked.add(name)
        return MEANINGS[name].compute

    yield find
    operator = getattr(request.function, "operator", None)
    assert operator is None or operator in asked, f"no vector of {operator}: the test asked for {sorted(asked)}"


def test_every_meaning_cites_its_document_and_has_a_vector() -> None:
    """A page of the vendor's that names the operator, and a test above or below that is marked as its vector."""
    from standin_npu.meanings import MEANINGS

    assert set(VECTORS) == set(MEANINGS)
    for name, found in MEANINGS.items():
        page = re.fullmatch(r"gitcode\.com/Ascend/op-plugin docs/\S+/[^/\s]*torch_npu-(\S+)\.md", found.document)

        assert page, f"{name} cites {found.document!r}"
        assert page[1].removeprefix("npu-") == DESCRIBED_BY_EXAMPLE.get(name, name.removeprefix("_")), name


def close(tensor: torch.Tensor, numbers: Any, tolerance: float = 1e-3) -> bool:
    return torch.allclose(tensor.float(), torch.tensor(numbers, dtype=torch.float32), atol=tolerance, rtol=0)


@vector("npu_rms_norm")
def test_rms_norm(meaning: Meaning) -> None:
    """(3, 4) has a mean square of 12.5: x / 3.5355 * (1, 2), and 1 / 3.5355."""
    y, reciprocal = meaning("npu_rms_norm")(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)

    assert close(y, [[0.8485, 2.2627]])
    assert close(reciprocal, [[0.2828]])


@vector("npu_rms_norm")
def test_rms_norm_adds_epsilon_to_the_mean(meaning: Meaning) -> None:
    """(1, 1) with an epsilon of 3 has a root of 2."""
    assert close(meaning("npu_rms_norm")(torch.ones(1, 2), torch.ones(2), 3.0)[0], [[0.5, 0.5]])


@vector("npu_add_rms_norm")
def test_add_rms_norm(meaning: Meaning) -> None:
    """(1, 1) + (2, 3) = (3, 4), normalised as above; the sum is the third result."""
    y, reciprocal, total = meaning("npu_add_rms_norm")(
        torch.ones(1, 2), torch.tensor([[2.0, 3.0]]), torch.tensor([1.0, 2.0]), 0.0
    )

    assert close(y, [[0.8485, 2.2627]])
    assert close(reciprocal, [[0.2828]])
    assert close(total, [[3.0, 4.0]])


@vector("npu_rotary_mul")
def test_rotary_halves(meaning: Meaning) -> None:
    """The row (1, 2, 3, 4) turned by a quarter (cos 0, sin 1) is (-3, -4, 1, 2)."""
    x, quarter = torch.tensor([1.0, 2, 3, 4]).view(1, 1, 1, 4), torch.ones(1, 1, 1, 4)

    assert meaning("npu_rotary_mul")(x, 0 * quarter, quarter).flatten().tolist() == [-3, -4, 1, 2]


@vector("npu_rotary_mul")
def test_rotary_neighbours(meaning: Meaning) -> None:
    """The same in pairs of neighbours is (-2, 1, -4, 3); cos 2, sin 1 adds 2x."""
    x, quarter = torch.tensor([1.0, 2, 3, 4]).view(1, 1, 1, 4), torch.ones(1, 1, 1, 4)
    turned = meaning("npu_rotary_mul")(x, 2 * quarter, quarter, "interleave")

    assert turned.flatten().tolist() == [0, 5, 2, 11]


@vector("npu_swiglu")
def test_swiglu(meaning: Meaning) -> None:
    """silu(1) = 0.7311 and silu(-2) = -0.2384, times 2 and 3."""
    assert close(meaning("npu_swiglu")(torch.tensor([[1.0, -2.0, 2.0, 3.0]])), [[1.4621, -0.7152]])


@vector("npu_dtype_cast")
def test_dtype_cast(meaning: Meaning) -> None:
    """(0, 0.5, -1) as int32, whose number is 3, is (0, 0, -1), as in the document's example; 290 is no dtype of torch."""
    cast = meaning("npu_dtype_cast")
    whole = cast(torch.tensor([0.0, 0.5, -1.0]), 3)
    half = cast(torch.tensor([1.0 + 2**-12]), 5)

    assert (whole.dtype, whole.tolist()) == (torch.int32, [0, 0, -1])
    assert (half.dtype, half.tolist()) == (torch.float16, [1.0])
    with pytest.raises(RuntimeError, match="not 290"):
        cast(torch.ones(1), 290)


@vector("_npu_dtype_cast")
def test_dtype_cast_behind_to(meaning: Meaning) -> None:
    """A cast to an integer truncates; one to bfloat16 keeps eight bits: 1 + 1/128 + 1/512 becomes 1 + 1/128."""
    cast = meaning("_npu_dtype_cast")

    assert cast(torch.tensor([1.75, -1.75]), torch.int64).tolist() == [1, -1]
    assert cast(torch.tensor([1 + 2**-7 + 2**-9]), torch.bfloat16).tolist() == [1 + 2**-7]


@vector("npu_format_cast")
def test_format_cast_keeps_the_values(meaning: Meaning) -> None:
    """A weight in the fractal format multiplies as before, and is another tensor."""
    weight = torch.tensor([[1.0, 2.0]])
    cast = meaning("npu_format_cast")(weight, 29)

    assert cast.tolist() == [[1.0, 2.0]]
    assert cast.data_ptr() != weight.data_ptr()


@vector("npu_format_cast_")
def test_format_cast_in_place(meaning: Meaning) -> None:
    """The same tensor comes back with its values, in format 29 or in another tensor's; 3 is not to be had here."""
    weight = torch.tensor([[1.0, 2.0]])
    cast = meaning("npu_format_cast_")

    assert cast(weight, 29) is weight
    assert cast(weight, torch.zeros(2, 2)) is weight
    assert weight.tolist() == [[1.0, 2.0]]
    with pytest.raises(RuntimeError, match="not 3"):
        cast(weight, 3)


@vector("npu_scatter_pa_kv_cache")
def test_scatter_into_plain_blocks(meaning: Meaning) -> None:
    """Slot 5 of blocks of 4 is the second token of the second block; nothing else changes."""
    keys, values = torch.zeros(2, 4, 1, 2), torch.zeros(2, 4, 1, 2)
    new = torch.tensor([[[7.0, 8.0]]])
    meaning("npu_scatter_pa_kv_cache")(new, 2 * new, keys, values, torch.tensor([5]), cache_mode="Norm")

    assert keys[1, 1, 0].tolist() == [7, 8]
    assert values[1, 1, 0].tolist() == [14, 16]
    assert (keys.sum(), values.sum()) == (15, 30)


@vector("npu_scatter_pa_kv_cache")
def test_scatter_into_fractal_blocks(meaning: Meaning) -> None:
    """In pieces of 2 the row (1, 2, 3, 4) of slot 3, blocks of 2, lies at [1, piece, 1]."""
    keys, values = torch.zeros(2, 2, 2, 2), torch.zeros(2, 2, 2, 2)
    row = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    meaning("npu_scatter_pa_kv_cache")(row, row, keys, values, torch.tensor([3]))

    assert keys[1, :, 1].tolist() == [[1, 2], [3, 4]]
    assert values.sum() == 10


@vector("npu_fused_infer_attention_score")
def test_attention_over_pages(meaning: Meaning) -> None:
    """
    One query over 17 keys in blocks of 16: sixteen score 0 and the last, in another block, ln 3: weights 1/19 and 3/19.

    Their values are 0 but for the sixteenth, 4, and the last, 8; two query heads share the one head of keys.
    """
    keys, values = torch.zeros(3, 16, 128).half(), torch.zeros(3, 16, 128).half()
    keys[1, 0, 0], values[2, 15, 0] = 1.0986, 4.0
    values[1, 0, 0] = 8.0
    query = torch.zeros(1, 2, 128).half()
    query[0, :, 0] = 1.0
    out, sums = meaning("npu_fused_infer_attention_score")(
        query, keys, values, atten_mask=torch.ones(2048, 2048, dtype=torch.bool).triu(1), actual_seq_lengths=[1],
        actual_seq_lengths_kv=[17], block_table=torch.tensor([[2, 1]], dtype=torch.int32), num_heads=2,
        num_key_value_heads=1, scale=1.0, input_layout="TND", sparse_mode=3, block_size=16,
    )  # fmt: skip

    assert out.shape == (1, 2, 128)
    assert close(out[0, :, 0], [(4 + 3 * 8) / 19] * 2, 5e-3)
    assert sums.numel() == 0


@vector("npu_fused_infer_attention_score.out")
def test_attention_into_given_memory(meaning: Meaning) -> None:
    """Of two keys that score 0, with values 2 and 6, the mean 4 is written into the first tensor of `out`."""
    values = torch.tensor([2.0, 6.0]).view(1, 1, 2, 1).expand(1, 1, 2, 128).contiguous().half()
    query, keys = torch.zeros(1, 1, 1, 128).half(), torch.zeros(1, 1, 2, 128).half()
    out = [torch.zeros(1, 1, 1, 128).half(), torch.zeros(1).half()]
    attend = meaning("npu_fused_infer_attention_score.out")
    given, _ = attend(
        query, keys, values, num_heads=1, input_layout="BNSD", workspace=torch.zeros(8, dtype=torch.uint8), out=out
    )

    assert given is out[0]
    assert set(out[0].flatten().tolist()) == {4.0}
    with pytest.raises(RuntimeError, match="a workspace"):
        attend(query, keys, values, num_heads=1, input_layout="BNSD", out=out)


@vector("_npu_fused_infer_attention_score_get_max_workspace")
def test_workspace_serves_any_lengths(meaning: Meaning) -> None:
    """Bytes, as many for one length as for another: a graph takes its workspace once, and new lengths at each run."""
    query = torch.zeros(1, 2, 128).half()
    ask = meaning("_npu_fused_infer_attention_score_get_max_workspace")
    short, long = (ask(query, query, query, num_heads=2, actual_seq_lengths_kv=[length]) for length in (1, 17))

    assert short.dtype == torch.uint8
    assert short.numel() == long.numel() > 0


@vector("npu_fused_infer_attention_score")
def test_attention_is_causal_from_the_right(meaning: Meaning) -> None:
    """With sparse_mode 3, two queries over three keys see two and three of them: means of values 3, 6, 9."""
    values = torch.tensor([3.0, 6.0, 9.0]).view(1, 1, 3, 1).expand(1, 1, 3, 128).contiguous().half()
    out, _ = meaning("npu_fused_infer_attention_score")(
        torch.zeros(1, 1, 2, 128).half(), torch.zeros(1, 1, 3, 128).half(), values, num_heads=1, input_layout="BNSD",
        sparse_mode=3, atten_mask=torch.ones(2048, 2048, dtype=torch.bool).triu(1),
    )  # fmt: skip

    assert close(out[0, 0, :, 0], [4.5, 6.0])


def test_attention_takes_a_whole_mask(meaning: Meaning) -> None:
    """With sparse_mode 0, True in the mask hides: the middle one of values 3, 6, 9 leaves a mean of 6, the last 4.5."""
    values = torch.tensor([3.0, 6.0, 9.0]).view(1, 1, 3, 1).expand(1, 1, 3, 128).contiguous().half()
    mask = torch.tensor([[[[False, True, False], [False, False, True]]]])
    out, _ = meaning("npu_fused_infer_attention_score")(
        torch.zeros(1, 1, 2, 128).half(), torch.zeros(1, 1, 3, 128).half(), values, num_heads=1, input_layout="BNSD",
        atten_mask=mask,
    )  # fmt: skip

    assert close(out[0, 0, :, 0], [6.0, 4.5])


@vector("npu_fused_infer_attention_score")
def test_attention_over_latents(meaning: Meaning) -> None:
    """The rope parts add to the scores: 0 and 0.5 + 0.5986 = ln 3, so values 4 and 8 give 7."""
    latents, ropes = torch.zeros(1, 1, 16, 512).half(), torch.zeros(1, 1, 16, 64).half()
    latents[0, 0, 1, 0], ropes[0, 0, 1, 0] = 0.5, 0.5986
    latents[0, 0, 0, 1], latents[0, 0, 1, 1] = 4.0, 8.0
    query, rope = torch.zeros(1, 2, 1, 512).half(), torch.zeros(1, 2, 1, 64).half()
    query[..., 0], rope[..., 0] = 1.0, 1.0
    out, _ = meaning("npu_fused_infer_attention_score")(
        query, latents, latents, query_rope=rope, key_rope=ropes, num_heads=2, num_key_value_heads=1,
        input_layout="BNSD", block_table=torch.zeros(1, 1, dtype=torch.int32), block_size=16, actual_seq_lengths_kv=[2],
    )  # fmt: skip

    assert close(out[0, :, 0, 1], [7.0, 7.0], 1e-2)


def test_layouts_of_attention_agree(meaning: Meaning) -> None:
    """BSH, BSND and BNSD are the same numbers in another order."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 4, 16).half() for _ in range(3))  # [batch, tokens, heads, dim]
    attend = meaning("npu_fused_infer_attention_score")
    bsnd, _ = attend(q, k, v, num_heads=4, input_layout="BSND", scale=0.25)
    bsh, _ = attend(*(t.flatten(2) for t in (q, k, v)), num_heads=4, input_layout="BSH", scale=0.25)
    bnsd, _ = attend(*(t.transpose(1, 2).contiguous() for t in (q, k, v)), num_heads=4, input_layout="BNSD", scale=0.25)

    assert torch.equal(bsh.view_as(bsnd), bsnd)
    assert torch.equal(bnsd.transpose(1, 2), bsnd)


@vector("npu_moe_init_routing_v2")
def test_routing_sorts_by_expert(meaning: Meaning) -> None:
    """Tokens 10, 20 with experts (2, 0), (0, 2): sorted 0 0 2 2 are choices 1, 2, 0, 3."""
    x, chosen = torch.tensor([[10.0], [20.0]]), torch.tensor([[2, 0], [0, 2]], dtype=torch.int32)
    route = meaning("npu_moe_init_routing_v2")
    rows, places, counts, _ = route(x, chosen, expert_num=3, expert_tokens_num_type=1, expert_tokens_num_flag=True)
    ends = route(x, chosen, expert_num=3, row_idx_type=1)

    assert rows.flatten().tolist() == [10, 20, 10, 20]
    assert places.tolist() == [2, 0, 1, 3]
    assert counts.tolist() == [2, 0, 2]
    assert (ends[1].tolist(), ends[2].tolist()) == ([1, 2, 0, 3], [2, 2, 4])


@vector("npu_grouped_matmul")
def test_grouped_matmul(meaning: Meaning) -> None:
    """Rows 1, 2 | 3 of groups of 2, 0 and 1 meet weights 10, 100, 1000, whether counts or ends are given."""
    x, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[[10.0]], [[100.0]], [[1000.0]]])
    multiply = meaning("npu_grouped_matmul")
    for kind, groups in ((1, [2, 0, 1]), (0, [2, 2, 3])):
        (y,) = multiply(
            [x], [weight], group_list=torch.tensor(groups), split_item=2, group_type=0, group_list_type=kind
        )

        assert y.flatten().tolist() == [10, 20, 3000]


@vector("npu_moe_token_unpermute")
def test_unpermute_weighs_and_adds(meaning: Meaning) -> None:
    """Token 0 went to rows 2, 0 and token 1 to 1, 3: 0.5 * 3 + 0.25 * 1 and 1 * 2 + 2 * 4."""
    rows, places = torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([2, 0, 1, 3], dtype=torch.int32)
    back = meaning("npu_moe_token_unpermute")(rows, places, torch.tensor([[0.5, 0.25], [1.0, 2.0]]))

    assert back.flatten().tolist() == [1.75, 10.0]


@vector("npu_moe_token_unpermute")
def test_unpermute_as_in_the_documents_example(meaning: Meaning) -> None:
    """Halves of rows (0, 4), (5, 1), (2, 6), (7, 3) of 1 2 3 4 1 2 3 4 are 1 2 3 4; without weights rows change places."""
    rows = torch.tensor([1.0, 2, 3, 4, 1, 2, 3, 4]).half()[:, None].repeat(1, 2)
    places = torch.tensor([0, 4, 5, 1, 2, 6, 7, 3], dtype=torch.int32)
    back = meaning("npu_moe_token_unpermute")
    swapped = back(rows[:4], torch.tensor([1, 0, 3, 2], dtype=torch.int32))

    assert back(rows, places, torch.full((4, 2), 0.5).half()).tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert swapped[:, 0].tolist() == [2, 1, 4, 3]


HALF = torch.zeros(1, 2, 128, dtype=torch.float16)
PAGES = {"block_table": torch.zeros(1, 1, dtype=torch.int32), "block_size": 128, "actual_seq_lengths_kv": [1]}
TND = {"num_heads": 2, "input_layout": "TND", "actual_seq_lengths": [1]}
BLOCKS = torch.zeros(1, 128, 256, dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "rule"),
    [
        ("npu_rms_norm", (torch.ones(2, 4), torch.ones(3)), {}, "last axes"),
        ("npu_add_rms_norm", (torch.ones(2, 4), torch.ones(1, 4), torch.ones(4)), {}, "one shape"),
        ("npu_rotary_mul", (torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2)), {}, "last axis"),
        ("npu_swiglu", (torch.ones(2, 5),), {}, "an even size"),
        ("npu_fused_infer_attention_score", (HALF.float(), HALF, HALF), TND, "query float16 or bfloat16"),
        ("npu_fused_infer_attention_score", (HALF[..., :64].contiguous(), BLOCKS, BLOCKS), TND | PAGES, "with TND, not 64"),
        (
            "npu_fused_infer_attention_score", (HALF, BLOCKS, BLOCKS),
            TND | PAGES | {"block_table": torch.zeros(1, 1)}, "block_table int32",
        ),
        ("npu_fused_infer_attention_score", (HALF, BLOCKS, BLOCKS), TND | PAGES | {"block_size": 0}, "block_size"),
        ("npu_fused_infer_attention_score", (HALF, BLOCKS, BLOCKS), TND | PAGES | {"actual_seq_lengths_kv": None}, "lengths_kv"),
        ("npu_fused_infer_attention_score", (HALF, HALF, HALF), TND | {"sparse_mode": 3}, "a mask with sparse_mode 3"),
        (
            "npu_scatter_pa_kv_cache",
            (torch.ones(1, 1, 2), torch.ones(1, 1, 2), torch.ones(1, 4, 1, 2), torch.ones(1, 4, 1, 2), torch.tensor([4])),
            {"cache_mode": "Norm"}, "slots in 0 .. 3",
        ),
        ("npu_moe_init_routing_v2", (torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.int64)), {"expert_num": 2}, "int32"),
        ("npu_moe_token_unpermute", (torch.ones(2, 1), torch.tensor([0, 0], dtype=torch.int32)), {}, "no row twice"),
        ("npu_moe_token_unpermute", (torch.ones(2, 1), torch.tensor([0, 2], dtype=torch.int32)), {}, "rows of 2"),
        (
            "npu_moe_token_unpermute",
            (torch.ones(513, 1), torch.arange(513, dtype=torch.int32), torch.ones(1, 513)), {}, "at most 512",
        ),
        (
            "npu_grouped_matmul", ([torch.ones(2, 3)], [torch.ones(2, 4, 5)]),
            {"group_list": torch.tensor([1, 1]), "split_item": 2, "group_type": 0, "group_list_type": 1}, "fits",
        ),
    ],
)  # fmt: skip
def test_refuses_what_the_document_excludes(
    meaning: Meaning, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], rule: str
) -> None:
    """Arguments that hardware would refuse or misread, and the wheel's shape functions let pass, are refused here."""
    with pytest.raises(RuntimeError, match=rule):
        meaning(name)(*args, **kwargs)


def test_refuses_twelve_heads_of_latents(meaning: Meaning) -> None:
    """Latents take head counts that are powers of two: 12 is refused."""
    query, rope = torch.zeros(1, 12, 1, 512).half(), torch.zeros(1, 12, 1, 64).half()
    with pytest.raises(RuntimeError, match=r"heads in .*, not 12"):
        meaning("npu_fused_infer_attention_score")(
            query, query[:, :1], query[:, :1], query_rope=rope, key_rope=rope[:, :1], num_heads=12,
            num_key_value_heads=1, input_layout="BNSD",
        )  # fmt: skip
