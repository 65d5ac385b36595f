/* A host that lays out the shared rings itself, byte by byte, and drives two lanes through them: one greedy, one whose tokens it
 * samples itself from the logits rows. It frees everything, so that a leak checker has something to check. argv[1]: the model. */
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

/* A ring in memory of our own: header, then slots of generation, length, padding, payload. */
static ictus_ring_desc_t ring(uint32_t id, uint32_t kind, uint32_t role, uint32_t slots, uint32_t payload_bytes) {
    const uint32_t slot_bytes = (ICTUS_RING_SLOT_HEADER_BYTES + payload_bytes + 7) / 8 * 8;
    const uint64_t len = ICTUS_RING_HEADER_BYTES + (uint64_t)slots * slot_bytes, magic = ICTUS_RING_MAGIC;
    unsigned char *base = calloc(1, len);
    CHECK(base != NULL);
    memcpy(base, &magic, 8);
    memcpy(base + 8, &id, 4);
    memcpy(base + 12, &slot_bytes, 4);
    memcpy(base + 16, &slots, 4);
    ictus_ring_desc_t desc = {sizeof desc, id, kind, role, slots, slot_bytes, 0, base, len};
    return desc;
}

static unsigned char *slot(const ictus_ring_desc_t *desc, uint32_t index) {
    CHECK(index < desc->slots);
    return (unsigned char *)desc->base + ICTUS_RING_HEADER_BYTES + (uint64_t)index * desc->slot_bytes;
}

/* The payload of a slot, whose generation and length must be as its reference says. */
static const void *payload(const ictus_ring_desc_t *desc, uint32_t index, uint64_t generation, uint32_t bytes) {
    uint64_t slot_generation;
    uint32_t slot_length;
    memcpy(&slot_generation, slot(desc, index), 8);
    memcpy(&slot_length, slot(desc, index) + 8, 4);
    CHECK(slot_generation == generation && slot_length == bytes);
    return slot(desc, index) + ICTUS_RING_SLOT_HEADER_BYTES;
}

static uint32_t partial_tokens;
static void on_partial_emit(void *user, uint64_t lane_tag, const uint32_t *tokens, uint32_t n_tokens) {
    const ictus_tick_events_t *events;
    CHECK(tokens != NULL && n_tokens == 1 && (lane_tag == 1 || lane_tag == 2));
    /* A callback that calls back is refused. */
    CHECK(ictus_tick(user, NULL, &events) == ICTUS_EBUSY && ictus_model_free(user) == ICTUS_EBUSY);
    partial_tokens += 1;
}

int main(int argc, char **argv) {
    CHECK(argc == 2 || argc == 3);
    ictus_model_options_t options = {.struct_size = sizeof options, .threads = 1, .context_tokens = 128, .pool_tokens = 256};
    options.worker = argv[2]; /* A worker program, or NULL: the engine is in this process. */
    ictus_model_t model;
    OK(ictus_model_open(argv[1], &options, NULL, 0, &model));
    ictus_model_info_t info = {.struct_size = sizeof info};
    OK(ictus_model_info(model, &info));
    CHECK(info.context_tokens == 128 && info.vocab_size > 0);

    ictus_ring_desc_t rings[3];
    rings[0] = ring(ICTUS_RING_ID_TOKENS_IN, ICTUS_RING_KIND_TOKENS, ICTUS_RING_ROLE_ENGINE_READS, 4, 64 * 4);
    rings[1] = ring(ICTUS_RING_ID_TOKENS_OUT, ICTUS_RING_KIND_TOKENS, ICTUS_RING_ROLE_ENGINE_WRITES, 4, 64 * 4);
    rings[2] = ring(ICTUS_RING_ID_LOGITS, ICTUS_RING_KIND_LOGITS, ICTUS_RING_ROLE_ENGINE_WRITES, 4, info.vocab_size * 4);
    OK(ictus_rings_attach(model, rings, 3));

    uint32_t prompt[64];
    uint64_t n_prompt;
    OK(ictus_model_tokenize(model, "Once upon a time", 16, ICTUS_TEXT_ADD_SPECIAL, prompt, 64, &n_prompt));
    const uint64_t generation = 1;
    const uint32_t bytes = (uint32_t)n_prompt * 4;
    memcpy(slot(&rings[0], 0) + ICTUS_RING_SLOT_HEADER_BYTES, prompt, bytes);
    memcpy(slot(&rings[0], 0) + 8, &bytes, 4);
    memcpy(slot(&rings[0], 0), &generation, 8);
    ictus_token_ref_t staged = {ICTUS_RING_ID_TOKENS_IN, 0, (uint32_t)n_prompt, 0, generation};

    ictus_lane_admit_t admits[2] = {{.lane_tag = 1, .prompt = staged}, {.lane_tag = 2, .prompt = staged}};
    admits[1].sampling = ICTUS_SAMPLING_HOST;
    admits[0].params.flags = admits[1].params.flags = ICTUS_SAMPLING_FLAG_IGNORE_EOS;
    ictus_lane_prefill_t prefills[2] = {{.lane_tag = 1, .token_count = (uint32_t)n_prompt},
                                        {.lane_tag = 2, .token_count = (uint32_t)n_prompt}};
    ictus_lane_decode_t decodes[2] = {{.lane_tag = 1, .max_new_tokens = 1}, {.lane_tag = 2, .max_new_tokens = 1}};
    ictus_lane_commit_t commit = {.lane_tag = 2};
    uint32_t greedy[8], hosted[8];
    const uint32_t steps = 8;
    for (uint32_t step = 0; step <= steps; step++) {
        ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = step + 1, .flags = ICTUS_TICK_PARTIAL_EMITS};
        plan.prefill_token_budget = 4096;
        plan.max_decode_lanes = 2;
        plan.on_partial_emit = on_partial_emit;
        plan.partial_emit_user = model;
        plan.decodes = (ictus_array_t){decodes, 2, sizeof decodes[0]};
        if (step == 0) {
            plan.admits = (ictus_array_t){admits, 2, sizeof admits[0]};
            plan.prefills = (ictus_array_t){prefills, 2, sizeof prefills[0]};
        } else {
            plan.commits = (ictus_array_t){&commit, 1, sizeof commit};
        }
        if (step == steps) plan.decodes.count = 1;
        const ictus_tick_events_t *events;
        OK(ictus_tick(model, &plan, &events));
        CHECK(events->struct_size == sizeof *events && events->plan_seq == plan.plan_seq && events->faults.count == 0);
        const ictus_lane_emit_t *emits = events->emits.data;
        CHECK(events->emits.count == plan.decodes.count && events->emits.elem_size == sizeof *emits);
        if (step < steps) {
            /* The greedy lane's token, and our own pick from the other's row: the first of the largest. */
            CHECK(emits[0].n_tokens == 1);
            memcpy(&greedy[step], payload(&rings[1], emits[0].token_ref.index, emits[0].token_ref.generation, 4), 4);
            const ictus_ring_ref_t row = emits[1].logits_row;
            const float *logits = payload(&rings[2], row.index, row.generation, info.vocab_size * 4);
            uint32_t best = 0;
            for (uint32_t token = 1; token < info.vocab_size; token++)
                if (logits[token] > logits[best]) best = token;
            hosted[step] = commit.token_id = best;
            commit.logits_nonce = row.generation;
        }
        /* The events stay whatever else is called. */
        ictus_array_t spaces;
        OK(ictus_state_spaces(model, &spaces));
        CHECK(spaces.count >= 1 && events->plan_seq == plan.plan_seq);
    }
    CHECK(memcmp(greedy, hosted, sizeof greedy) == 0);
    CHECK(partial_tokens >= steps);

    /* A lane's sequence has one handle while the lane lives, and a stale one afterwards. */
    const ictus_sequence_t sequence = ictus_tick_lane_sequence(model, 1);
    CHECK(sequence != NULL && ictus_tick_lane_sequence(model, 1) == sequence && ictus_tick_lane_sequence(model, 9) == NULL);
    ictus_lane_retire_t retires[2] = {{.lane_tag = 1}, {.lane_tag = 2}};
    ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = 100, .max_decode_lanes = 2};
    plan.retires = (ictus_array_t){retires, 2, sizeof retires[0]};
    const ictus_tick_events_t *events;
    OK(ictus_tick(model, &plan, &events));
    CHECK(events->mem.pool_blocks_used == 0);
    CHECK(ictus_tick_sequence_free(model, sequence) == ICTUS_ERR_UNKNOWN_HANDLE);
    /* The same plan again: refused, and the events stay. */
    const ictus_tick_events_t *before = events;
    CHECK(ictus_tick(model, &plan, &events) == ICTUS_REJECT_ILLEGAL_COMBINATION && events == before && events->plan_seq == 100);
    char text[256];
    uint64_t text_bytes;
    OK(ictus_model_last_error(model, text, sizeof text, &text_bytes));
    CHECK(strstr(text, "ictus_tick: ") == text && strlen(text) == text_bytes);

    OK(ictus_model_free(model));
    CHECK(ictus_model_free(model) == ICTUS_ERR_UNKNOWN_HANDLE);
    for (int i = 0; i < 3; i++) free(rings[i].base);
    puts("own rings: ok");
    return 0;
}
