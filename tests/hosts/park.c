/* A host that parks a lane: one process writes a lane's state into a file, another one reads it and goes on.
 *
 *   park MODEL save FILE      prompt, 8 tokens, snapshot into FILE; then prints the next 8 tokens
 *   park MODEL resume FILE    restores, adopts, admits; prints the next 8 tokens and how many were not computed again
 *   park MODEL damaged FILE   the same with a damaged file: refused, so everything is computed anew
 *
 * A fourth argument names a worker program: then the engine is in a process of its own. */
#include <ictus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
#define OK(call) CHECK((call) == ICTUS_STATUS_OK)

enum { MOST = 256, STEP = 8 };

/* What a file holds: the lane's tokens, then the sealed bytes. */
struct parked {
    uint64_t n_tokens;
    uint64_t boundary;
    uint64_t n_bytes;
    uint32_t tokens[MOST];
};

static ictus_array_t array_of(const void *data, uint32_t count, uint32_t elem_size) {
    ictus_array_t array = {data, count, elem_size};
    return array;
}

/* One tick with a decode of lane 1, and the tokens it gave. */
static void decode(ictus_model_t model, ictus_tick_plan_t *plan, uint32_t *tokens) {
    static uint64_t seq;
    const ictus_lane_decode_t decode = {.lane_tag = 1, .max_new_tokens = STEP};
    const ictus_tick_events_t *events;
    plan->struct_size = sizeof *plan;
    plan->plan_seq = ++seq;
    plan->prefill_token_budget = 4096;
    plan->max_decode_lanes = 1;
    plan->decodes = array_of(&decode, 1, sizeof decode);
    OK(ictus_tick(model, plan, &events));
    CHECK(events->faults.count == 0 && events->emits.count == 1);
    const ictus_lane_emit_t *emit = events->emits.data;
    uint64_t n_tokens;
    OK(ictus_model_read_tokens(model, &emit->token_ref, tokens, STEP, &n_tokens));
    CHECK(n_tokens == STEP);
}

/* Admits lane 1 on `tokens`, of which `held` lie in the leased sequence; 0 is none. */
static void start(ictus_model_t model, const uint32_t *tokens, uint64_t n_tokens, uint64_t lease, uint64_t held, uint32_t *out) {
    ictus_lane_admit_t admit = {.lane_tag = 1, .seed_handle = lease};
    admit.params.flags = ICTUS_SAMPLING_FLAG_IGNORE_EOS;
    OK(ictus_model_stage_prompt(model, tokens, n_tokens, &admit.prompt));
    ictus_lane_prefill_t prefill = {.lane_tag = 1, .token_offset = (uint32_t)held, .token_count = (uint32_t)(n_tokens - held)};
    ictus_tick_plan_t plan = {.admits = array_of(&admit, 1, sizeof admit), .prefills = array_of(&prefill, 1, sizeof prefill)};
    decode(model, &plan, out);
}

/* Polls until an operation is done; each poll moves it on. */
static void wait_for(ictus_model_t model, ictus_op_t op, uint64_t bytes) {
    ictus_op_status_t status = {.struct_size = sizeof status};
    uint64_t moved = 0;
    do {
        OK(ictus_op_poll(model, op, &status));
        CHECK(status.bytes_moved >= moved);
        moved = status.bytes_moved;
    } while (status.state == ICTUS_OP_PENDING || status.state == ICTUS_OP_RUNNING);
    CHECK(status.state == ICTUS_OP_DONE && status.error == 0 && moved == bytes);
}

static void print(const char *what, const uint32_t *tokens) {
    printf("%s", what);
    for (int i = 0; i < STEP; i++) printf(" %u", tokens[i]);
    printf("\n");
}

static void save(ictus_model_t model, const char *path) {
    struct parked parked = {0};
    const char *text = "Once upon a time there was a dog who wanted to see the sea, and a cat who did not.";
    OK(ictus_model_tokenize(model, text, strlen(text), ICTUS_TEXT_ADD_SPECIAL, parked.tokens, MOST - 2 * STEP, &parked.n_tokens));
    start(model, parked.tokens, parked.n_tokens, 0, 0, parked.tokens + parked.n_tokens);
    parked.n_tokens += STEP;

    const ictus_sequence_t sequence = ictus_tick_lane_sequence(model, 1);
    CHECK(sequence != NULL);
    OK(ictus_space_snapshot_boundary(sequence, ICTUS_SPACE_KV, parked.n_tokens, &parked.boundary));
    CHECK(parked.boundary >= 16 && parked.boundary < parked.n_tokens);
    const ictus_token_range_t range = {0, parked.boundary};
    uint64_t sizing;
    OK(ictus_space_export_size(sequence, ICTUS_SPACE_KV, range, ICTUS_ENCODING_LOSSLESS, &parked.n_bytes, &sizing));
    unsigned char *bytes = malloc(parked.n_bytes);
    CHECK(bytes != NULL);
    memset(bytes, 0xAA, parked.n_bytes);
    ictus_op_t op;
    ictus_buf_t small = {bytes, parked.n_bytes - 1}, dst = {bytes, parked.n_bytes};
    CHECK(ictus_space_snapshot(sequence, ICTUS_SPACE_KV, parked.boundary, small, sizing, &op) == ICTUS_ERR_BUFFER_TOO_SMALL);
    CHECK(bytes[0] == 0xAA && bytes[parked.n_bytes - 1] == 0xAA);
    OK(ictus_space_snapshot(sequence, ICTUS_SPACE_KV, parked.boundary, dst, sizing, &op));
    wait_for(model, op, parked.n_bytes);
    CHECK(memcmp(bytes, "BRTSTATE", 8) == 0);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(&parked, sizeof parked, 1, file) == 1);
    CHECK(fwrite(bytes, 1, parked.n_bytes, file) == parked.n_bytes && fclose(file) == 0);
    free(bytes);

    /* The lane goes on here; whoever reads the file must get these. */
    uint32_t next[STEP];
    ictus_tick_plan_t plan = {0};
    decode(model, &plan, next);
    print("next", next);
}

static void resume(ictus_model_t model, const char *path, int damaged) {
    struct parked parked;
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fread(&parked, sizeof parked, 1, file) == 1);
    unsigned char *bytes = malloc(parked.n_bytes);
    CHECK(bytes != NULL && fread(bytes, 1, parked.n_bytes, file) == parked.n_bytes && fclose(file) == 0);

    const ictus_sequence_t sequence = ictus_tick_sequence_create(model);
    CHECK(sequence != NULL);
    uint32_t next[STEP];
    uint64_t lease = 0, held = 0;
    ictus_op_t op = 0;
    const ictus_buf_t src = {bytes, parked.n_bytes};
    if (damaged) {
        bytes[parked.n_bytes / 2] ^= 1;
        for (int i = 0; i < 2; i++)
            CHECK(ictus_space_restore(sequence, ICTUS_SPACE_KV, src, &op) == ICTUS_ERR_CHECKSUM && op == 0);
        OK(ictus_tick_sequence_free(model, sequence));
    } else {
        OK(ictus_space_restore(sequence, ICTUS_SPACE_KV, src, &op));
        wait_for(model, op, parked.n_bytes - sizeof(ictus_state_envelope_t));
        CHECK(ictus_space_restore(sequence, ICTUS_SPACE_KV, src, &op) == ICTUS_EBUSY);
        ictus_token_ref_t span;
        OK(ictus_model_stage_prompt(model, parked.tokens, parked.boundary, &span));
        OK(ictus_seed_adopt(model, sequence, span, &lease));
        held = parked.boundary;
    }
    free(bytes);
    start(model, parked.tokens, parked.n_tokens, lease, held, next);
    print("next", next);
    printf("held %llu\n", (unsigned long long)held);
}

int main(int argc, char **argv) {
    CHECK(argc == 4 || argc == 5);
    const ictus_model_options_t options = {.struct_size = sizeof options, .worker = argv[4]};
    char error[512];
    ictus_model_t model;
    if (ictus_model_open(argv[1], &options, error, sizeof error, &model) != ICTUS_STATUS_OK) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    OK(ictus_model_rings_create(model, NULL));
    if (strcmp(argv[2], "save") == 0) {
        save(model, argv[3]);
    } else {
        resume(model, argv[3], strcmp(argv[2], "damaged") == 0);
    }
    OK(ictus_model_free(model));
    return 0;
}
