/* A host that owns its scheduler: it admits, runs batches, waits for room and goes on, on an executor of its own.
 *
 *   executor MODEL     prints what three requests said, a line of tokens each; the third had to wait for room */
#define _POSIX_C_SOURCE 200809L
#include <ictus.h>
#include <poll.h>
#include <pthread.h>
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

enum { PROMPT = 20, OUTPUTS = 8, BLOCKS = ICTUS_DOMAIN_BLOCKS - 1, SLOTS = ICTUS_DOMAIN_SLOTS - 1 };

struct request {
    ictus_executor_seq_t seq;
    uint32_t prompt[PROMPT];
    uint32_t said[OUTPUTS];
    uint32_t n_said;
};

struct host {
    ictus_executor_t executor;
    struct request request;
    /* The refusal of its first admission, once there was one. */
    ictus_refusal_t refusal;
    pthread_mutex_t lock;
    pthread_cond_t refused;
    uint32_t waits;
};

static ictus_array_t array_of(const ictus_work_t *work, uint32_t count) {
    ictus_array_t array = {work, count, sizeof *work};
    return array;
}

static void fill_prompt(struct request *request, uint32_t salt, uint32_t vocab) {
    for (uint32_t i = 0; i < PROMPT; i++) request->prompt[i] = (i * 37 + salt * 101 + 5) % vocab;
}

static ictus_status admit(ictus_executor_t executor, struct request *request, ictus_refusal_t *refusal) {
    ictus_admission_t admission = {.struct_size = sizeof admission, .prompt = request->prompt, .n_prompt = PROMPT};
    admission.ceiling = PROMPT + OUTPUTS;
    admission.fit = ICTUS_FIT_CEILING;
    return ictus_executor_admit(executor, &admission, &request->seq, refusal);
}

/* The scheduler: every request in every batch, its prompt or its next token, until all have said enough. */
static void serve(ictus_executor_t executor, struct request **requests, uint32_t n) {
    while (requests[0]->n_said < OUTPUTS) {
        ictus_work_t work[2];
        ictus_row_t rows[2];
        uint32_t tokens[2];
        for (uint32_t i = 0; i < n; i++) {
            struct request *r = requests[i];
            ictus_work_t prefill = {.seq = r->seq, .count = PROMPT, .total = PROMPT, .kind = ICTUS_WORK_PREFILL, .whole = 1};
            ictus_work_t decode = {.seq = r->seq, .start = PROMPT + r->n_said - 1, .count = 1, .kind = ICTUS_WORK_DECODE};
            decode.tokens = &r->said[r->n_said - 1];
            work[i] = r->n_said == 0 ? prefill : decode;
        }
        OK(ictus_executor_run(executor, array_of(work, n), rows, n, tokens, n, NULL, 0, NULL));
        for (uint32_t i = 0; i < n; i++) {
            CHECK(rows[i].kind == ICTUS_OUT_TOKENS && rows[i].count == 1 && rows[i].seq.slot == requests[i]->seq.slot);
            requests[i]->said[requests[i]->n_said++] = tokens[rows[i].first];
        }
    }
}

static void complete(ictus_executor_t executor, struct request *request, ictus_receipt_t *receipt) {
    receipt->struct_size = sizeof *receipt;
    OK(ictus_executor_close(executor, request->seq, ICTUS_END_COMPLETED, PROMPT, OUTPUTS, receipt, NULL));
}

/* A thread of the third request: it asks, is refused, parks on the ticket, and asks again when it is woken. */
static void *serve_third(void *argument) {
    struct host *host = argument;
    ictus_refusal_t refusal = {.struct_size = sizeof refusal};
    while (admit(host->executor, &host->request, &refusal) == ICTUS_NEEDS_REPLAN) {
        CHECK(pthread_mutex_lock(&host->lock) == 0);
        if (host->waits++ == 0) host->refusal = refusal;
        CHECK(pthread_cond_signal(&host->refused) == 0 && pthread_mutex_unlock(&host->lock) == 0);
        ictus_ticket_t fresh;
        uint32_t woken = 0;
        OK(ictus_capacity_wait(host->executor, &refusal.blocked.ticket, UINT64_MAX, &fresh, &woken));
        CHECK(woken == 1);
    }
    CHECK(refusal.kind == ICTUS_REFUSAL_NONE && refusal.blocked.n_short == 0);
    struct request *one = &host->request;
    serve(host->executor, &one, 1);
    ictus_receipt_t receipt;
    complete(host->executor, one, &receipt);
    return NULL;
}

/* Rows of logits, masks, penalties, several tokens in one pass: on the first request's prompt, to the same tokens. */
static void look_closer(ictus_executor_t executor, const struct request *known, uint32_t vocab) {
    struct request again = *known;
    ictus_refusal_t refusal = {.struct_size = sizeof refusal};
    OK(admit(executor, &again, &refusal));
    float *row = malloc(vocab * sizeof *row);
    unsigned char *mask = malloc(vocab);
    CHECK(row != NULL && mask != NULL);
    ictus_row_t answer;
    ictus_logits_t full = {.struct_size = sizeof full, .kind = ICTUS_LOGITS_FULL};
    ictus_work_t item = {.seq = again.seq, .count = PROMPT, .total = PROMPT, .logits = &full, .kind = ICTUS_WORK_PREFILL, .whole = 1};
    CHECK(ictus_executor_run(executor, array_of(&item, 1), &answer, 1, NULL, 0, row, vocab - 1, &refusal) == ICTUS_ERR_BUFFER_TOO_SMALL);
    CHECK(refusal.kind == ICTUS_REFUSAL_NONE);
    OK(ictus_executor_run(executor, array_of(&item, 1), &answer, 1, NULL, 0, row, vocab, NULL));
    CHECK(answer.kind == ICTUS_OUT_LOGITS && answer.count == 1 && answer.ran_end == PROMPT);
    uint32_t best = 0, second = 0;
    for (uint32_t id = 1; id < vocab; id++) best = row[id] > row[best] ? id : best;
    CHECK(best == known->said[0]);
    for (uint32_t id = 0; id < vocab; id++)
        if (id != best && (second == best || row[id] > row[second])) second = id;

    /* The token that is likeliest, forbidden; then all of them at once, which the host may ask of nobody. */
    memset(mask, 1, vocab);
    uint32_t token = 7;
    ictus_logits_t masked = {.struct_size = sizeof masked, .mask = mask, .n_mask = vocab};
    ictus_work_t last = {.seq = again.seq, .start = PROMPT - 1, .count = 1, .total = PROMPT, .logits = &masked};
    mask[best] = 0;
    OK(ictus_executor_truncate(executor, again.seq, PROMPT - 1, NULL, NULL));
    OK(ictus_executor_run(executor, array_of(&last, 1), &answer, 1, &token, 1, NULL, 0, NULL));
    CHECK(token == second);
    memset(mask, 0, vocab);
    OK(ictus_executor_truncate(executor, again.seq, PROMPT - 1, NULL, NULL));
    OK(ictus_executor_run(executor, array_of(&last, 1), &answer, 1, &token, 1, NULL, 0, NULL));
    CHECK(answer.kind == ICTUS_OUT_NO_FINITE && answer.ran_end == PROMPT);
    ictus_logits_t punished = {.struct_size = sizeof punished, .penalised = &best, .n_penalised = 1, .penalty = 1e6f};
    last.logits = &punished;
    OK(ictus_executor_truncate(executor, again.seq, PROMPT - 1, NULL, NULL));
    OK(ictus_executor_run(executor, array_of(&last, 1), &answer, 1, &token, 1, NULL, 0, NULL));
    const float value = row[best] > 0 ? row[best] / 1e6f : row[best] * 1e6f;
    CHECK(token == (value > row[second] || (value == row[second] && best < second) ? best : second));

    /* Four tokens verified in one pass: what decodes would have said. */
    uint32_t verified[4];
    ictus_work_t verify = {.seq = again.seq, .start = PROMPT, .count = 4, .tokens = known->said, .kind = ICTUS_WORK_VERIFY};
    OK(ictus_executor_run(executor, array_of(&verify, 1), &answer, 1, verified, 4, NULL, 0, NULL));
    CHECK(answer.count == 4 && memcmp(verified, known->said + 1, sizeof verified) == 0);
    uint64_t frontier = 0, units[7];
    OK(ictus_executor_frontier(executor, again.seq, &frontier));
    OK(ictus_executor_held(executor, again.seq, units));
    CHECK(frontier == PROMPT + 4 && units[SLOTS] == 1 && units[BLOCKS] == 2);
    OK(ictus_executor_frees(executor, &again.seq, 1, units));
    CHECK(units[SLOTS] == 1 && units[BLOCKS] == 2);
    ictus_work_t ahead = {.seq = again.seq, .start = PROMPT + 4, .count = 1, .tokens = &best, .kind = ICTUS_WORK_DECODE};
    ictus_receipt_t receipt = {.struct_size = sizeof receipt};
    OK(ictus_executor_reserve(executor, array_of(&ahead, 1), ICTUS_FIT_CEILING, &receipt, NULL));
    CHECK(receipt.gained[BLOCKS] == 0);
    OK(ictus_executor_close(executor, again.seq, ICTUS_END_RECOMPUTE, 0, 0, &receipt, NULL));
    CHECK(receipt.freed[BLOCKS] == 2 && receipt.decoding == 1 && receipt.pending == 0);
    CHECK(ictus_executor_close(executor, again.seq, ICTUS_END_CANCELLED, 0, 0, NULL, &refusal) == ICTUS_ERR_UNKNOWN_HANDLE);
    CHECK(refusal.kind == ICTUS_REFUSAL_BAD && refusal.why == ICTUS_BAD_STALE);
    free(row);
    free(mask);
}

/* The same core, ticked: the same pool, and the same tokens. */
static void tick_the_same(ictus_executor_t executor, const struct request *known) {
    ictus_model_t model, other;
    OK(ictus_executor_tick_host(executor, &model));
    CHECK(ictus_executor_tick_host(executor, &other) == ICTUS_EBUSY);
    OK(ictus_model_rings_create(model, NULL));
    ictus_lane_admit_t lane = {.lane_tag = 1};
    lane.params.flags = ICTUS_SAMPLING_FLAG_IGNORE_EOS;
    OK(ictus_model_stage_prompt(model, known->prompt, PROMPT, &lane.prompt));
    ictus_lane_prefill_t prefill = {.lane_tag = 1, .token_count = PROMPT};
    ictus_lane_decode_t decode = {.lane_tag = 1, .max_new_tokens = OUTPUTS};
    ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = 1, .prefill_token_budget = 4096, .max_decode_lanes = 1};
    plan.shed_policy.evictable_cache_classes = UINT64_MAX;
    plan.shed_policy.max_evict_bytes = UINT64_MAX;
    plan.admits = (ictus_array_t){&lane, 1, sizeof lane};
    plan.prefills = (ictus_array_t){&prefill, 1, sizeof prefill};
    plan.decodes = (ictus_array_t){&decode, 1, sizeof decode};
    const ictus_tick_events_t *events;
    OK(ictus_tick(model, &plan, &events));
    uint32_t said[OUTPUTS];
    uint64_t n_said = 0;
    OK(ictus_model_read_tokens(model, &((const ictus_lane_emit_t *)events->emits.data)->token_ref, said, OUTPUTS, &n_said));
    CHECK(n_said == OUTPUTS && memcmp(said, known->said, sizeof said) == 0);
    ictus_memory_t of_model = {.struct_size = sizeof of_model}, of_executor = {.struct_size = sizeof of_executor};
    OK(ictus_capacity_memory(model, &of_model));
    OK(ictus_capacity_memory(executor, &of_executor));
    CHECK(memcmp(&of_model, &of_executor, sizeof of_model) == 0 && of_model.static_bytes > 0);
    CHECK(of_model.static_bytes + of_model.resident <= of_model.own_claimed);
    OK(ictus_model_free(model));
    OK(ictus_executor_tick_host(executor, &model));
    OK(ictus_model_free(model));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    ictus_model_options_t model_options = {.struct_size = sizeof model_options, .threads = 1, .page_size_tokens = 16, .max_lanes = 4};
    model_options.context_tokens = 64;
    model_options.pool_tokens = 80;
    ictus_account_t account;
    OK(ictus_account_create(UINT64_MAX, &account));
    ictus_executor_options_t options = {.struct_size = sizeof options, .account = account, .max_batch_tokens = 2 * PROMPT};
    char text[256] = "";
    struct host third = {.lock = PTHREAD_MUTEX_INITIALIZER, .refused = PTHREAD_COND_INITIALIZER};
    ictus_executor_t executor;
    OK(ictus_executor_open(argv[1], &model_options, &options, text, sizeof text, &executor));
    uint64_t claimed = 0, usable = 0;
    OK(ictus_account_level(account, &claimed, &usable));
    OK(ictus_account_free(account));
    ictus_executor_info_t info = {.struct_size = sizeof info};
    OK(ictus_executor_info(executor, &info));
    CHECK(claimed > info.static_bytes && info.static_bytes > 0 && info.vocab > 0 && info.blocks == 5 && info.block_tokens == 16);
    OK(ictus_executor_prepare(executor, NULL));

    /* Two requests fill the pool; the third is refused, and its thread parks. */
    struct request first = {0}, second = {0};
    third.executor = executor;
    fill_prompt(&first, 0, info.vocab);
    fill_prompt(&second, 1, info.vocab);
    fill_prompt(&third.request, 2, info.vocab);
    OK(admit(executor, &first, NULL));
    OK(admit(executor, &second, NULL));
    ictus_work_t ahead[2] = {{.seq = first.seq, .count = PROMPT, .total = PROMPT}, {.seq = second.seq, .count = PROMPT, .total = PROMPT}};
    OK(ictus_executor_reserve(executor, array_of(ahead, 2), ICTUS_FIT_NOW, NULL, NULL));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve_third, &third) == 0);
    CHECK(pthread_mutex_lock(&third.lock) == 0);
    while (third.waits == 0) CHECK(pthread_cond_wait(&third.refused, &third.lock) == 0);
    const ictus_refusal_t refusal = third.refusal;
    CHECK(pthread_mutex_unlock(&third.lock) == 0);
    CHECK(refusal.kind == ICTUS_REFUSAL_BLOCKED && refusal.blocked.remedy == ICTUS_REMEDY_WAIT && refusal.blocked.n_short == 1);
    CHECK(refusal.blocked.short_of[0].domain == ICTUS_DOMAIN_BLOCKS && refusal.blocked.short_of[0].lack == ICTUS_LACK_FIT);
    CHECK(refusal.blocked.short_of[0].need == 2 && refusal.blocked.short_of[0].free == 1);
    uint64_t narrower = 0;
    OK(ictus_blocked_narrower(&refusal.blocked, PROMPT, &narrower));
    CHECK(narrower == 10);
    /* The same ticket, polled; nothing comes free while both run. */
    ictus_wait_t wait;
    int32_t descriptor = -1;
    OK(ictus_capacity_wait_begin(executor, &refusal.blocked.ticket, &wait, &descriptor));
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    struct request *both[2] = {&first, &second};
    serve(executor, both, 2);
    CHECK(poll(&polled, 1, 0) == 0);
    ictus_receipt_t receipt;
    complete(executor, &first, &receipt);
    CHECK(receipt.freed[SLOTS] == 1 && receipt.freed[BLOCKS] == 2 && receipt.decoding == 1);
    CHECK(poll(&polled, 1, 20000) == 1);
    ictus_ticket_t fresh;
    uint32_t woken = 0;
    OK(ictus_capacity_wait_end(wait, &fresh, &woken));
    CHECK(woken == 1);
    complete(executor, &second, &receipt);
    CHECK(pthread_join(thread, NULL) == 0 && third.waits >= 1);

    look_closer(executor, &first, info.vocab);
    tick_the_same(executor, &first);
    ictus_executor_stats_t stats = {.struct_size = sizeof stats};
    OK(ictus_executor_stats(executor, &stats));
    CHECK(stats.completed == 3 && stats.prompt_tokens == 3 * PROMPT && stats.output_tokens == 3 * OUTPUTS);
    CHECK(stats.blocked >= 1 && stats.accounting_faults == 0 && stats.state == ICTUS_EXECUTOR_STATE_READY);
    OK(ictus_executor_shutdown(executor, &receipt, NULL));
    ictus_refusal_t closed = {.struct_size = sizeof closed};
    CHECK(admit(executor, &first, &closed) == ICTUS_ERR_UNKNOWN_HANDLE && closed.why == ICTUS_BAD_CLOSED);
    OK(ictus_executor_destroy(executor));
    CHECK(ictus_executor_destroy(executor) == ICTUS_ERR_UNKNOWN_HANDLE);

    const struct request *all[3] = {&first, &second, &third.request};
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < OUTPUTS; i++) printf("%s%u", i == 0 ? "" : " ", all[r]->said[i]);
        printf("\n");
    }
    return 0;
}
