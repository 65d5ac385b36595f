/* The smallest host: load a model, admit one lane, tick until it finishes, print the text.
 *
 * hello.rs and hello.cpp are the same program with the same steps. */
#include <ictus.h>
#include <stdio.h>
#include <string.h>

static ictus_array_t array_of(const void *data, uint32_t count, uint32_t elem_size) {
    ictus_array_t array = {data, count, elem_size};
    return array;
}

/* Says why a call failed. */
static int failed(ictus_model_t model) {
    char text[512];
    uint64_t bytes;
    if (ictus_model_last_error(model, text, sizeof text, &bytes) == ICTUS_STATUS_OK) fprintf(stderr, "%s\n", text);
    ictus_model_free(model);
    return 1;
}

int main(int argc, char **argv) {
    /* Load: the model file is mapped, the page pool is planned, nothing runs yet. */
    const char *path = "models/ictus-tiny.gguf";
    ictus_model_options_t options = {.struct_size = sizeof options};
    for (int i = 1; i < argc; i++) {
        /* --worker: the engine in a process of its own; everything below stays as it is. */
        if (strcmp(argv[i], "--worker") == 0)
            options.worker = "";
        else
            path = argv[i];
    }
    char error[512];
    ictus_model_t model;
    if (ictus_model_open(path, &options, error, sizeof error, &model) != ICTUS_STATUS_OK) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    if (ictus_model_rings_create(model, NULL) != ICTUS_STATUS_OK) return failed(model);

    /* Stage: the prompt goes into the token-in ring. */
    const char *prompt = "Once upon a time";
    const uint32_t flags = ICTUS_TEXT_ADD_SPECIAL | ICTUS_TEXT_PARSE_SPECIAL;
    uint32_t tokens[64];
    uint64_t prompt_tokens, text;
    ictus_token_ref_t staged;
    if (ictus_model_tokenize(model, prompt, strlen(prompt), flags, tokens, 64, &prompt_tokens) != ICTUS_STATUS_OK ||
        ictus_model_stage_prompt(model, tokens, prompt_tokens, &staged) != ICTUS_STATUS_OK)
        return failed(model);

    /* First tick: admit lane 1, run its prompt, grant one token. Later ticks: one token each. */
    if (ictus_text_begin(model, 0, &text) != ICTUS_STATUS_OK) return failed(model);
    printf("%s", prompt);
    ictus_lane_admit_t admit = {.lane_tag = 1, .prompt = staged};
    ictus_lane_prefill_t prefill = {.lane_tag = 1, .token_count = (uint32_t)prompt_tokens};
    ictus_lane_decode_t decode = {.lane_tag = 1, .max_new_tokens = 1};
    char piece[256];
    uint64_t bytes;
    for (uint64_t seq = 1; seq <= 200; seq++) {
        ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = seq};
        plan.prefill_token_budget = 4096;
        plan.max_decode_lanes = 8;
        plan.decodes = array_of(&decode, 1, sizeof decode);
        if (seq == 1) {
            plan.admits = array_of(&admit, 1, sizeof admit);
            plan.prefills = array_of(&prefill, 1, sizeof prefill);
        }
        const ictus_tick_events_t *events;
        if (ictus_tick(model, &plan, &events) != ICTUS_STATUS_OK) return failed(model);

        /* Read: the emitted tokens are in the token-out ring. */
        if (events->emits.count == 0) return failed(model);
        const ictus_lane_emit_t *emit = events->emits.data;
        uint64_t n_tokens;
        if (ictus_model_read_tokens(model, &emit->token_ref, tokens, 64, &n_tokens) != ICTUS_STATUS_OK) return failed(model);
        for (uint64_t i = 0; i < n_tokens; i++) {
            if (ictus_text_push(model, text, tokens[i], piece, sizeof piece, &bytes) != ICTUS_STATUS_OK) return failed(model);
            printf("%s", piece);
        }
        if (emit->finish != ICTUS_FINISH_NONE) break;
    }
    if (ictus_text_end(model, text, piece, sizeof piece, &bytes) != ICTUS_STATUS_OK) return failed(model);
    printf("%s\n", piece);
    ictus_model_free(model);
    return 0;
}
