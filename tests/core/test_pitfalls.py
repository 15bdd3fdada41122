"""Which test stands for which trap that other ports fell into.

A trap without a test, or a test that is gone, fails here.

Numbers 1 to 12 are about the model, 13 to 22 about sampling, 23 to 28 about training.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PITFALLS: dict[int, tuple[str, dict[str, list[str]]]] = {
    1: ("every canvas row sees the same last W - 1 prefix tokens and the whole canvas: "
        "a rectangle, not a band", {
        "test_attention_masks": ["test_flipping_a_prefix_token_moves_every_canvas_row_or_none",
                                 "test_decoder_masks_against_a_loop",
                                 "test_flipping_a_canvas_token_moves_every_canvas_row"]}),
    2: ("ids under padding move nothing, a padded batch is the mean of its rows, "
        "no mask is accepted and ignored", {
        "test_attention_masks": ["test_ids_under_padding_move_nothing",
                                 "test_a_padded_row_equals_the_row_alone"],
        "test_loss": ["test_a_padded_batch_is_the_mean_of_the_rows_alone",
                      "test_ids_under_padding_do_not_count"],
        "test_model": ["test_no_mask_argument_is_ignored"]}),
    3: ("a prompt longer than the window in one pass equals the prompt token by token", {
        "test_attention_masks": ["test_one_pass_equals_the_prompt_in_pieces",
                                 "test_padded_prompt_in_pieces"]}),
    4: ("a cache that is right past the window: all of the prefix is kept, "
        "and read as a loop over all of it would", {
        "test_attention_masks": ["test_attention_against_a_loop",
                                 "test_the_cache_keeps_the_whole_prefix_on_sliding_layers_too"]}),
    5: ("the router reads the raw residual, the experts one norm of it, the dense MLP another", {
        "test_model": ["test_what_each_branch_of_a_block_reads"]}),
    6: ("softmax, top-k, renormalise, then the scale per expert; softmax in float32", {
        "test_moe": ["test_softmax_over_all_then_top_k_equals_softmax_over_the_top_k",
                     "test_the_per_expert_scale_comes_last_so_weights_need_not_sum_to_one",
                     "test_softmax_in_float32_under_bfloat16_input"]}),
    7: ("probabilities are softmaxed once", {
        "test_moe": ["test_the_router_hands_out_probabilities_softmaxed_once"],
        "test_loss": ["test_total_loss_is_the_plain_sum"]}),
    8: ("proportional rotary embedding", {
        "test_layers": ["test_proportional_rotary_frequencies",
                        "test_lane_i_turns_with_lane_i_plus_half",
                        "test_still_lanes_pass_unchanged"]}),
    9: ("full layers have no value projection, and scores are not divided", {
        "test_attention_masks": ["test_attention_against_a_loop"]}),
    10: ("both sides share every weight but one scalar per layer, "
         "through move, copy, cast, save and load", {
        "test_model": ["test_the_two_sides_differ_by_one_number_per_layer", "test_sharing_survives",
                       "test_every_weight_reaches_both_sides_but_for_self_conditioning"],
        "test_checkpoint": ["test_the_file_holds_one_copy_of_the_weights"]}),
    11: ("a swapped key of equal shape", {
        "test_checkpoint": ["test_a_constant_in_each_tensor_lands_where_its_name_says"]}),
    12: ("embedding scale, soft-cap, and buffers that survive the meta device", {
        "test_layers": ["test_embedding_is_scaled_by_the_root_of_the_width", "test_soft_cap"],
        "test_model": ["test_embedding_head_and_soft_cap_in_the_model",
                       "test_meta_device_construction",
                       "test_init_weights_after_meta_construction_is_a_fresh_model"]}),
    13: ("threshold k needs k + 1 equal canvases, counted anew in every canvas", {
        "test_sampler": ["test_constant_confident_logits",
                         "test_stability_needs_k_equal_canvases_before_this_one"],
        "test_generation": ["test_stability_is_counted_anew_in_every_canvas",
                            "test_stability_threshold_through_generate"]}),
    14: ("finished rows are frozen; confidence is judged on scaled logits", {
        "test_sampler": ["test_finished_rows_are_frozen",
                         "test_confidence_is_judged_on_temperature_scaled_logits"],
        "test_generation": ["test_a_finished_row_keeps_its_answer_whatever_comes_later"]}),
    15: ("no self-conditioning is a zero signal; scaled logits feed the next step", {
        "test_model": ["test_self_conditioning_zero_signal_and_zero_logits"],
        "test_generation": ["test_self_conditioning_is_what_the_step_before_believed",
                            "test_generate_is_the_written_out_loop"]}),
    16: ("the first temperature is t_max, the last is not t_min", {
        "test_sampler": ["test_temperature_starts_at_t_max_and_ends_one_step_above_t_min"]}),
    17: ("the argmax canvas is committed and encoded causally", {
        "test_generation": ["test_what_is_committed_is_the_argmax_and_it_is_read_causally",
                            "test_generate_is_the_written_out_loop"]}),
    18: ("max_new_tokens is an upper bound, the end token cuts, and the reasons are told", {
        "test_generation": ["test_max_new_tokens_is_an_upper_bound",
                            "test_everything_after_the_first_end_token_is_cut",
                            "test_an_end_token_beyond_max_new_tokens_is_not_kept",
                            "test_rows_of_a_canvas_stop_on_their_own"]}),
    19: ("a row with its own generator does not depend on its batch", {
        "test_generation": ["test_a_row_with_its_own_generator_is_independent_of_its_batch",
                            "test_autoregressive_sampling_is_row_independent"],
        "test_sampler": ["test_one_generator_per_row_makes_rows_independent",
                         "test_with_own_generators_a_finished_row_stops_drawing"],
        "test_noise": ["test_a_generator_per_row_makes_rows_independent"]}),
    20: ("a knob changed between two calls counts at once", {
        "test_generation": ["test_changing_a_knob_between_two_calls_equals_a_fresh_model"],
        "test_sampler": ["test_a_knob_changed_between_two_calls_counts_at_once"]}),
    21: ("NaN raises", {
        "test_generation": ["test_nan_logits_raise", "test_nan_weights_raise",
                            "test_nan_for_one_row_and_one_token_is_enough"],
        "test_train": ["test_nan_weights_end_the_run"]}),
    22: ("the number of steps is swept, not assumed", {
        "test_generation": ["test_the_number_of_steps_can_be_swept"]}),
    23: ("the decoder loss trains the encoder through the cache, "
         "with and without gradient checkpointing", {
        "test_loss": ["test_the_decoder_loss_alone_trains_the_encoder_through_the_cache",
                      "test_gradients_with_and_without_checkpointing_are_equal",
                      "test_gradient_checkpointing_is_at_work"]}),
    24: ("noise depends on seed, epoch and example alone", {
        "test_loss": ["test_noise_does_not_depend_on_batch_size_or_order",
                      "test_noise_depends_on_seed_epoch_and_number",
                      "test_noise_leaves_the_global_stream_alone"],
        "test_train": ["test_a_batch_depends_on_the_step_alone",
                       "test_resume_after_a_kill_is_bit_identical_to_no_kill"]}),
    25: ("a row without labels gives 0, not NaN", {
        "test_loss": ["test_a_row_without_labels_gives_loss_0_and_gradient_0"]}),
    26: ("a cut answer has no supervised end token, a complete one is filled with them", {
        "test_loss": ["test_a_complete_answer_is_filled_with_supervised_end_tokens",
                      "test_a_cut_answer_has_no_end_token",
                      "test_labels_of_cut_and_complete_answers"]}),
    27: ("the loss counts all positions alike; the first pass leaves no graph", {
        "test_loss": [
            "test_denoising_loss_counts_corrupted_and_clean_positions_alike_without_a_weight",
            "test_the_first_pass_leaves_no_graph"]}),
    28: ("train, save, reload, generate", {
        "test_train": ["test_train_save_reload_generate"]}),
}  # fmt: skip


@cache
def functions_of(module: str) -> dict[str, ast.FunctionDef]:
    """The test functions of a file that are not skipped, by name."""
    tree = ast.parse((HERE / f"{module}.py").read_text(encoding="utf-8"))
    found = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    return {
        node.name: node
        for node in found
        if not any("skip" in ast.dump(d) for d in node.decorator_list)
    }


def test_every_pitfall_of_model_sampling_and_training_is_in_the_table():
    assert sorted(PITFALLS) == list(range(1, 29))


@pytest.mark.parametrize("number", PITFALLS, ids=lambda n: f"{n}")
def test_its_tests_exist_and_can_fail(number):
    _, where = PITFALLS[number]
    assert where
    for module, names in where.items():
        missing = [name for name in names if name not in functions_of(module)]
        assert names and not missing, f"{module}: {missing}"
        checks = (ast.Assert, ast.With)  # an assertion, or an exception that has to come
        for name in names:
            calls = ast.dump(functions_of(module)[name])
            assert (
                any(isinstance(n, checks) for n in ast.walk(functions_of(module)[name]))
                or "assert_close" in calls
            ), name


def test_a_test_that_names_a_pitfall_is_in_the_table():
    """Docstrings say "Pitfall 13"; the table and they must agree."""
    said = 0
    for module in {m for _, where in PITFALLS.values() for m in where}:
        for name, node in functions_of(module).items():
            for numbers in re.findall(
                r"Pitfalls? (\d+)(?: and (\d+))?", ast.get_docstring(node) or ""
            ):
                for number in [int(n) for n in numbers if n]:
                    said += 1
                    assert name in PITFALLS[number][1].get(module, []), (
                        f"{module}.{name} names pitfall {number}"
                    )
    assert said > 28
