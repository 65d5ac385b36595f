/* A host that links the installed ictus: checks that library and header agree, opens the model that it is given, runs one tick, and
 * prints the version, the hash, and the token. Every failure has an exit status of its own. C11, and C++17 through host.cpp. */

#include <ictus.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int fail(int code, const char *what, ictus_status status) {
    fprintf(stderr, "%s: %s\n", what, ictus_status_text(status));
    return code;
}

static ictus_array_t list(const void *data, size_t elem_size) {
    ictus_array_t array;
    array.data = data;
    array.count = 1;
    array.elem_size = (uint32_t)elem_size;
    return array;
}

/* Admits one greedy lane, runs its prompt, grants one token. */
static int one_tick(ictus_model_t model, uint32_t *token) {
    const uint32_t prompt[] = {1, 2, 3, 4, 5};
    const uint32_t prompt_tokens = sizeof prompt / sizeof *prompt;
    ictus_lane_admit_t admit;
    ictus_lane_prefill_t prefill;
    ictus_lane_decode_t decode;
    ictus_tick_plan_t plan;
    memset(&admit, 0, sizeof admit);
    memset(&prefill, 0, sizeof prefill);
    memset(&decode, 0, sizeof decode);
    memset(&plan, 0, sizeof plan);

    ictus_status status = ictus_model_rings_create(model, NULL);
    if (status != ICTUS_STATUS_OK) return fail(20, "rings", status);
    status = ictus_model_stage_prompt(model, prompt, prompt_tokens, &admit.prompt);
    if (status != ICTUS_STATUS_OK) return fail(21, "prompt", status);

    admit.lane_tag = prefill.lane_tag = decode.lane_tag = 7;
    admit.sampling = ICTUS_SAMPLING_GPU_GREEDY;
    admit.params.top_p = 1.0f;
    admit.params.flags = ICTUS_SAMPLING_FLAG_IGNORE_EOS;
    prefill.token_count = prompt_tokens;
    decode.max_new_tokens = 1;
    plan.struct_size = sizeof plan;
    plan.plan_seq = 1;
    plan.prefill_token_budget = prompt_tokens;
    plan.max_decode_lanes = 1;
    plan.admits = list(&admit, sizeof admit);
    plan.prefills = list(&prefill, sizeof prefill);
    plan.decodes = list(&decode, sizeof decode);

    const ictus_tick_events_t *events = NULL;
    status = ictus_tick(model, &plan, &events);
    if (status != ICTUS_STATUS_OK) return fail(22, "tick", status);
    if (events->emits.count != 1) return fail(23, "emits", status);
    const ictus_lane_emit_t *emit = (const ictus_lane_emit_t *)events->emits.data;
    uint64_t n_tokens = 0;
    status = ictus_model_read_tokens(model, &emit->token_ref, token, 1, &n_tokens);
    if (status != ICTUS_STATUS_OK) return fail(24, "tokens", status);
    if (n_tokens != 1) return fail(25, "tokens", status);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    if (strcmp(ictus_version(), ICTUS_VERSION) != 0) return 3;
    if (ictus_abi_hash() != ICTUS_ABI_HASH) return 4;

    char error[256] = "";
    ictus_model_t model = NULL;
    ictus_status status = ictus_model_open(argv[1], NULL, error, sizeof error, &model);
    if (status != ICTUS_STATUS_OK) return fail(10, error, status);
    uint32_t token = 0;
    int failure = one_tick(model, &token);
    if (failure) return failure;
    status = ictus_model_free(model);
    if (status != ICTUS_STATUS_OK) return fail(11, "free", status);

    printf("ictus %s %016" PRIx64 " token %" PRIu32 "\n", ictus_version(), ictus_abi_hash(), token);
    return 0;
}
