"""Which test holds which known bug of OpenAI-compatible servers (case ids B01, B02, ...); `python tests/case_results.py` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent.parent

TEXT, REFUSALS = "system/api/test_api_text.py", "system/api/test_api_refusals.py"
LIFE, CHAT, OPENAI = "system/api/test_api_lifecycle.py", "system/api/test_api_chat.py", "system/api/test_api_openai.py"
PARAMETERS, PROMPTS, GENERATION = (
    "unit/api/test_parameters.py",
    "unit/api/test_prompts.py",
    "unit/api/test_generation.py",
)
LOGPROBS, HTTP = "system/api/test_api_logprobs.py", "system/test_sampling_http.py"
CHECK, INVARIANCES = "unit/engine/test_sequence_check.py", "engine/test_invariances.py"
SCORES, PROCESSORS, SAMPLER = "engine/test_logprobs.py", "engine/test_logits_processors.py", "engine/test_sampler.py"
ROTATION, LOGS = "unit/telemetry/test_rotating_log.py", "system/supervisor/test_supervisor_log.py"
VOLUME = "system/supervisor/test_log_volume.py"
STRUCTURED = "system/test_structured_http.py"
FIELDS = f"{REFUSALS}::test_bad_field_is_400_and_the_engine_lives"

CASES = {
    "B01": [f"{TEXT}::test_b01_usage_chunk_when_asked_for"],
    "B02": [f"{TEXT}::test_b02_no_usage_chunk_unasked"],
    "B04": [f"{LIFE}::test_b04_failure_before_the_first_token", f"{LIFE}::test_failure_inside_a_stream_is_an_event"],
    "B05": [f"{TEXT}::test_b05_b06_roles_and_reasons_of_two_samples"],
    "B06": [f"{TEXT}::test_b05_b06_roles_and_reasons_of_two_samples"],
    "B08": [f"{TEXT}::test_b08_characters_are_never_split", "unit/api/test_detokenizer.py::test_joined_pieces_are_the_whole_text"],
    "B09": [f"{TEXT}::test_b09_half_a_character_is_flushed"],
    "B10": [f"{TEXT}::test_stop_strings", "unit/api/test_stop_strings.py::test_no_character_of_a_stop_string_is_given_out_early"],
    "B12": [f"{TEXT}::test_stop_strings"],
    "B13": [f"{TEXT}::test_stop_strings", "unit/api/test_stop_strings.py::test_cuts_make_no_difference"],
    "B14": [f"{TEXT}::test_stop_strings"],
    "B16": [f"{TEXT}::test_stop_strings", f"{PARAMETERS}::test_stop_that_is_a_special_token_becomes_its_id"],
    "B17": [f"{TEXT}::test_b17_ignore_eos_and_stop_ids_reach_the_engine"],
    "B18": [f"{TEXT}::test_b17_ignore_eos_and_stop_ids_reach_the_engine"],
    "B20": [FIELDS, f"{CHECK}::test_bad_field_is_named_with_value_and_bound"],
    "B21": [FIELDS, f"{CHECK}::test_bad_field_is_named_with_value_and_bound"],
    "B22": [FIELDS, f"{PARAMETERS}::test_value_out_of_range_is_named"],
    "B24": [FIELDS, f"{CHECK}::test_bad_prompt_is_refused"],
    "B25": [FIELDS, f"{CHECK}::test_bad_field_is_named_with_value_and_bound", f"{PROMPTS}::test_bad_prompt_is_refused"],
    "B26": [FIELDS, f"{CHAT}::test_b88_one_bos", f"{PROMPTS}::test_empty_text_depends_on_the_tokenizer"],
    "B28": [FIELDS],
    "B29": [f"{TEXT}::test_b29_b40_echo", f"{LOGPROBS}::test_b29_prompt_alone_is_scored", f"{SCORES}::test_max_tokens_0_scores_a_prompt_that_fills_the_context"],
    "B30": [f"{TEXT}::test_b30_defaults_of_max_tokens"],
    "B31": [FIELDS, f"{REFUSALS}::test_b31_b33_long_prompt_is_explained"],
    "B32": [FIELDS, f"{PARAMETERS}::test_what_does_not_fit_is_refused_with_the_figures"],
    "B33": [f"{REFUSALS}::test_b31_b33_long_prompt_is_explained", "unit/api/test_tokenizer.py::test_file_that_truncates_is_overruled"],
    "B34": [f"{LOGPROBS}::test_b34_chat_logprobs"],
    "B36": [f"{LOGPROBS}::test_b36_echo_and_logprobs", "unit/api/test_logprobs.py::test_joined_tokens_are_the_text"],
    "B37": [f"{LOGPROBS}::test_b37_infinite_logprob_is_json", "unit/api/test_logprobs.py::test_every_number_is_json"],
    "B38": [f"{HTTP}::test_b38_echoed_logprobs_twice", f"{SCORES}::test_prompt_logprobs_of_any_schedule"],
    "B40": [f"{TEXT}::test_b29_b40_echo"],
    "B41": [f"{INVARIANCES}::test_a_prefix_hit_does_not_change_tokens"],
    "B42": [f"{INVARIANCES}::test_a_prefix_hit_does_not_change_tokens", f"{HTTP}::test_b42_b45_same_request_same_text"],
    "B44": [f"{INVARIANCES}::test_preemption_does_not_change_tokens"],
    "B45": [f"{INVARIANCES}::test_preemption_does_not_change_tokens"],
    "B46": ["unit/engine/test_scheduler.py::test_long_prompts_larger_than_the_pool_together_finish_in_bounded_steps"],
    "B48": [FIELDS, f"{PARAMETERS}::test_value_out_of_range_is_named"],
    "B49": [f"{TEXT}::test_b49_tiny_temperature_is_greedy", f"{SAMPLER}::test_a_tiny_temperature_is_greedy"],
    "B50": [f"{SAMPLER}::test_greedy_and_sampled_rows_of_one_step_do_not_disturb_each_other", f"{PROCESSORS}::test_no_token_left_is_told_and_neighbours_are_unharmed"],
    "B52": [f"{TEXT}::test_b52_two_samples"],
    "B53": [FIELDS, f"{PARAMETERS}::test_value_out_of_range_is_named", f"{LOGPROBS}::test_b53_best_of_answers_the_likeliest"],
    "B54": [f"{REFUSALS}::test_b54_same_request_id_twice"],
    "B56": [f"{LIFE}::test_b55_b56_client_leaves", f"{GENERATION}::test_cancellation_that_comes_with_a_token_is_kept"],
    "B57": [f"{GENERATION}::test_late_events_are_ignored"],
    "B58": [f"{LIFE}::test_b58_storm_of_aborts_leaves_nothing"],
    "B60": [f"{LIFE}::test_b60_figures_of_requests", f"{GENERATION}::test_first_token_is_timed_once"],
    "B61": ["system/supervisor/test_many_deaths.py::test_b61_a_hundred_kills_leave_nothing_behind", "unit/telemetry/test_merge.py::test_gauges_of_a_dead_child_vanish", "unit/telemetry/test_merge.py::test_no_counter_ever_goes_back"],
    "B62": [f"{LIFE}::test_b62_engine_death", f"{LIFE}::test_not_ready_until_the_engine_said_hello"],
    "B64": [f"{LIFE}::test_b64_b65_health_is_quick_under_load", f"{PROMPTS}::test_long_text_is_encoded_in_a_thread"],
    "B65": [f"{LIFE}::test_b64_b65_health_is_quick_under_load"],
    "B66": [f"{LIFE}::test_b66_b68_drain_lets_streams_finish", f"{LIFE}::test_drain_cuts_off_at_its_deadline"],
    "B68": [f"{LIFE}::test_b66_b68_drain_lets_streams_finish"],
    "B69": [f"{LIFE}::test_b69_end_of_the_supervisor_ends_the_process"],
    "B70": ["system/doctor/test_machine.py::test_b70_a_start_is_refused_while_an_orphan_has_its_chip", "system/doctor/test_machine.py::test_b70_an_orphan_beside_the_instance_is_told", "system/supervisor/test_supervisor_death.py::test_an_engine_waits_until_nobody_holds_its_device"],
    "B72": [f"{REFUSALS}::test_b72_every_route_needs_the_key"],
    "B73": [f"{REFUSALS}::test_b73_b98_no_key_and_no_prompt_in_log_or_process", "unit/api/test_auth.py::test_key_is_not_kept"],
    "B74": [f"{REFUSALS}::test_b74_wrong_key", f"{REFUSALS}::test_b74_the_body_is_not_awaited"],
    "B76": [FIELDS, f"{REFUSALS}::test_b76_body_that_is_no_json_object", f"{REFUSALS}::test_b76_413_is_not_invalid_json"],
    "B77": [f"{REFUSALS}::test_b77_unknown_model", f"{OPENAI}::test_refusals_are_the_package_s_errors"],
    "B78": [f"{REFUSALS}::test_b77_unknown_model", "system/test_lora.py::test_b78_unknown_name_and_bad_folders"],
    "B80": ["system/test_lora.py::test_b80_base_adapter_base_over_http", "engine/test_lora.py::test_b80_base_adapter_base_share_no_block"],
    "B81": [FIELDS, f"{STRUCTURED}::test_b81_b82_bad_schema_fails_its_request_alone"],
    "B82": [f"{STRUCTURED}::test_b81_b82_bad_schema_fails_its_request_alone", "unit/grammar/test_matcher.py::test_b82_what_cannot_be_compiled_is_named"],
    "B84": [f"{STRUCTURED}::test_b84_json_object_cut_off", f"{STRUCTURED}::test_b84_no_infinite_whitespace"],
    "B85": [f"{CHAT}::test_b85_b86_template_refuses"],
    "B86": [f"{CHAT}::test_b85_b86_template_refuses", f"{CHAT}::test_b86_no_template"],
    "B88": [f"{CHAT}::test_b88_one_bos"],
    "B89": [f"{STRUCTURED}::test_b89_tool_choice_required"],
    "B90": ["unit/api/test_tool_calls.py::test_b90_cuts_make_no_difference"],
    "B92": [f"{INVARIANCES}::test_chunk_size_does_not_change_tokens"],
    "B93": [f"{LIFE}::test_b93_slow_readers_are_cut_off", f"{GENERATION}::test_tokens_nobody_takes_are_bounded"],
    "B94": [f"{LIFE}::test_b55_b56_client_leaves"],
    "B96": [f"{VOLUME}::test_b96_four_processes_and_fifty_megabytes", f"{VOLUME}::test_b96_old_files_are_bounded", f"{ROTATION}::test_the_file_is_rotated_by_size", f"{LOGS}::test_a_killed_log_writer_loses_nothing"],
    "B97": [f"{VOLUME}::test_b97_external_rotation", f"{ROTATION}::test_an_external_logrotate_is_followed", f"{ROTATION}::test_a_file_emptied_in_place_counts_from_zero", f"{LOGS}::test_sighup_opens_the_file_anew"],
    "B98": ["system/api/test_api_log_volume.py::test_b98_ten_thousand_long_prompts", f"{VOLUME}::test_b96_old_files_are_bounded", f"{ROTATION}::test_a_full_disk_drops_whole_lines_and_tells", f"{REFUSALS}::test_b73_b98_no_key_and_no_prompt_in_log_or_process"],
    "B100": [FIELDS, f"{PARAMETERS}::test_value_out_of_range_is_named"],
    "B101": [f"{TEXT}::test_b101_batch_keeps_order", f"{TEXT}::test_b101_one_bad_prompt_fails_the_call_before_any_work"],
    "B102": [FIELDS, f"{CHAT}::test_b102_keywords_reach_the_template"],
    "B104": [f"{REFUSALS}::test_b104_models", "system/test_lora.py::test_b104_models_lists_base_and_adapters"],
    "B105": ["system/daemon/test_abort_storm.py::test_b105_memory_returns_after_a_storm_of_aborts", f"{LIFE}::test_b58_storm_of_aborts_leaves_nothing", "unit/engine/test_scheduler_load.py::test_a_pool_of_40_blocks_under_64_requests_with_aborts"],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_case_is_held_by_a_test_that_names_it(case: str) -> None:
    """Each test of the table exists, and one of them names the case in its name, docstring or parameters."""
    named = False
    for place in CASES[case]:
        path, _, name = place.partition("::")
        source = (TESTS / path).read_text(encoding="utf-8")
        function = next(
            (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name), None
        )
        assert function is not None, place
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        text = "\n".join(source.splitlines()[first - 1 : function.end_lineno])
        named |= case in text or f"_{case.lower()}_" in text
        # A docstring may give a range, such as B10-B16.
        named |= "B10-B16" in text and 10 <= int(case[1:]) <= 16

    assert named
