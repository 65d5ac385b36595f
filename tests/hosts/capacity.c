/* A host that waits for room instead of trying again and again.
 *
 *   capacity MODEL     a plan lacks room: why, and three ways to wait until a lane has left */
#define _POSIX_C_SOURCE 200809L
#include <ictus.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
#define OK(call) CHECK((call) == ICTUS_STATUS_OK)

enum { LONG = 96 };

static uint64_t seq;

static ictus_array_t array_of(const void *data, uint32_t count, uint32_t elem_size) {
    ictus_array_t array = {data, count, elem_size};
    return array;
}

/* A model with room for one long lane. */
static ictus_model_t open_model(const char *path) {
    ictus_model_options_t options = {.struct_size = sizeof options, .threads = 1, .context_tokens = 128, .max_lanes = 4};
    options.pool_tokens = 128;
    char text[256];
    ictus_model_t model;
    OK(ictus_model_open(path, &options, text, sizeof text, &model));
    OK(ictus_model_rings_create(model, NULL));
    return model;
}

/* A lane with a prompt of LONG tokens. */
static ictus_status admit(ictus_model_t model, uint64_t tag) {
    uint32_t tokens[LONG];
    for (uint32_t i = 0; i < LONG; i++) tokens[i] = 3 + i % 40;
    ictus_lane_admit_t lane = {.lane_tag = tag};
    OK(ictus_model_stage_prompt(model, tokens, LONG, &lane.prompt));
    ictus_lane_prefill_t prefill = {.lane_tag = tag, .token_count = LONG};
    ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = ++seq, .prefill_token_budget = 4096};
    plan.admits = array_of(&lane, 1, sizeof lane);
    plan.prefills = array_of(&prefill, 1, sizeof prefill);
    const ictus_tick_events_t *events;
    return ictus_tick(model, &plan, &events);
}

static void retire(ictus_model_t model, uint64_t tag) {
    ictus_lane_retire_t lane = {.lane_tag = tag};
    ictus_tick_plan_t plan = {.struct_size = sizeof plan, .plan_seq = ++seq};
    plan.retires = array_of(&lane, 1, sizeof lane);
    const ictus_tick_events_t *events;
    OK(ictus_tick(model, &plan, &events));
}

static uint32_t changed(ictus_model_t model, const ictus_ticket_t *ticket) {
    uint32_t moved = 7;
    OK(ictus_capacity_changed(model, ticket, &moved));
    return moved;
}

struct waiting {
    ictus_model_t model;
    ictus_ticket_t ticket;
    ictus_status status;
    uint32_t woken;
};

/* Waits without limit while another thread ticks. */
static void *wait_here(void *argument) {
    struct waiting *waiting = argument;
    ictus_ticket_t fresh;
    waiting->status = ictus_capacity_wait(waiting->model, &waiting->ticket, UINT64_MAX, &fresh, &waiting->woken);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    ictus_model_t model = open_model(argv[1]);
    ictus_blocked_t blocked = {.struct_size = sizeof blocked};
    CHECK(ictus_last_blocked(model, &blocked) == ICTUS_ERR_UNKNOWN_HANDLE);
    ictus_memory_t memory = {.struct_size = sizeof memory};
    OK(ictus_capacity_memory(model, &memory));
    CHECK(memory.blocks_total > 0 && memory.blocks_free == memory.blocks_total && memory.own_claimed <= memory.usable);

    OK(admit(model, 1));
    CHECK(admit(model, 2) == ICTUS_NEEDS_REPLAN);
    OK(ictus_last_blocked(model, &blocked));
    CHECK(blocked.remedy == ICTUS_REMEDY_WAIT && blocked.n_short == 1);
    CHECK(blocked.short_of[0].domain == ICTUS_DOMAIN_BLOCKS && blocked.short_of[0].lack == ICTUS_LACK_NOW);
    CHECK(blocked.short_of[0].need > blocked.short_of[0].free && blocked.short_of[0].total == memory.blocks_total);
    CHECK(blocked.ticket.watch == 1u << (ICTUS_DOMAIN_BLOCKS - 1) && changed(model, &blocked.ticket) == 0);

    /* With a time limit: nothing comes. */
    ictus_ticket_t fresh;
    uint32_t woken = 7;
    OK(ictus_capacity_wait(model, &blocked.ticket, 1000000, &fresh, &woken));
    CHECK(woken == 0);

    /* With a descriptor: nothing yet, then news. */
    ictus_wait_t wait;
    int32_t descriptor = -1;
    OK(ictus_capacity_wait_begin(model, &blocked.ticket, &wait, &descriptor));
    struct pollfd polled = {.fd = descriptor, .events = POLLIN};
    CHECK(poll(&polled, 1, 0) == 0);
    /* In a thread of its own: it is woken by the tick below. */
    struct waiting waiting = {.model = model, .ticket = blocked.ticket, .woken = 7};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_here, &waiting) == 0);
    retire(model, 1);
    CHECK(poll(&polled, 1, 20000) == 1 && (polled.revents & (POLLIN | POLLHUP)) != 0);
    CHECK(ictus_capacity_wait_end(wait, NULL, &woken) == ICTUS_REJECT_BAD_STRUCT);
    OK(ictus_capacity_wait_end(wait, &fresh, &woken));
    CHECK(woken == 1 && changed(model, &fresh) == 0 && changed(model, &blocked.ticket) == 1);
    CHECK(ictus_capacity_wait_end(wait, &fresh, &woken) == ICTUS_ERR_UNKNOWN_HANDLE);
    CHECK(pthread_join(thread, NULL) == 0 && waiting.status == ICTUS_STATUS_OK && waiting.woken == 1);
    OK(admit(model, 2));
    CHECK(ictus_last_blocked(model, &blocked) == ICTUS_ERR_UNKNOWN_HANDLE);

    /* Of two observations the older counts; one of another model is refused; a wait that is given up leaves nothing. */
    ictus_ticket_t now, both;
    OK(ictus_capacity_now(model, &now));
    now.watch = 1u << (ICTUS_DOMAIN_SLOTS - 1);
    OK(ictus_ticket_union(&fresh, &now, &both));
    CHECK(both.watch == (fresh.watch | now.watch));
    ictus_ticket_t none = {0};
    CHECK(ictus_capacity_changed(model, &none, &woken) == ICTUS_REJECT_BOUNDS);
    ictus_model_t other = open_model(argv[1]);
    CHECK(ictus_capacity_changed(other, &fresh, &woken) == ICTUS_ERR_IDENTITY_MISMATCH);
    CHECK(ictus_ticket_union(&fresh, NULL, &both) == ICTUS_REJECT_BAD_STRUCT);
    OK(ictus_model_free(other));
    OK(ictus_capacity_wait_begin(model, &now, &wait, &descriptor));
    OK(ictus_capacity_wait_end(wait, NULL, NULL));

    /* A model that is released ends its waits. */
    waiting.ticket = now;
    CHECK(pthread_create(&thread, NULL, wait_here, &waiting) == 0);
    OK(ictus_model_free(model));
    CHECK(pthread_join(thread, NULL) == 0 && waiting.status == ICTUS_ERR_UNKNOWN_HANDLE);
    CHECK(ictus_capacity_now(model, &now) == ICTUS_ERR_UNKNOWN_HANDLE);
    printf("capacity: ok\n");
    return 0;
}
